"""The table of architectures that can be converted: data, so that a new one is a few lines.

An entry says which HF class it is for, llama.cpp's name, which config values become which metadata, how tensors are
rearranged, which are generated, and which must be there. Names of tensors come from gguf's own map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from quantizer.config import Config
from quantizer.errors import CheckpointError
from quantizer.sources import GeneratedTensor
from quantizer.transforms import RowOrder, unpermute_keys, unpermute_queries

__all__ = ["ARCHITECTURES", "Architecture", "Hyperparameter", "architecture_of", "head_size"]

Number: TypeAlias = int | float | str | None
Shapes: TypeAlias = Callable[[Config], dict[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """One metadata row: `key` follows "<architecture>.", `read` takes it from the config (None: leave it out)."""

    key: str
    type_name: str
    read: Callable[[Config], Number]


@dataclass(frozen=True, slots=True)
class Architecture:
    """Everything that converting one HF class takes; `gguf_name` is llama.cpp's name for it."""

    hf_class: str
    gguf_name: str
    hyperparameters: tuple[Hyperparameter, ...]
    # gguf MODEL_TENSOR name -> order of its rows
    row_orders: Mapping[str, RowOrder] = field(default_factory=dict)
    generate: Callable[[Config], list[GeneratedTensor]] = lambda _config: []
    # endings of source tensors that the runtime computes itself
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
    # the tensors that must be there and their shapes in ggml order: of the whole model, and of each layer
    model_shapes: Shapes = lambda _config: {}
    layer_shapes: Shapes = lambda _config: {}


def head_size(config: Config) -> int:
    """Width of one attention head."""
    explicit = config.optional_integer("head_dim")
    if explicit is not None:
        return explicit
    n_heads = config.integer("num_attention_heads")
    if n_heads == 0 or config.integer("hidden_size") % n_heads:
        raise CheckpointError(f"config.json spreads its hidden size over {n_heads} heads.", "Check config.json.")
    return config.integer("hidden_size") // n_heads


def _rope(config: Config) -> Config:
    """Rope settings, which transformers 5 keeps in one object and earlier versions in two places."""
    return config.section("rope_parameters", "rope_scaling")


def _rope_kind(config: Config) -> str:
    kind = _rope(config).text("rope_type") or _rope(config).text("type") or "default"
    if kind not in ("default", "linear", "yarn", "llama3"):
        raise CheckpointError(f"The rope scaling {kind[:32]!r} is not supported.", "Choose another model.")
    return kind


def _rope_base(config: Config) -> float:
    return _rope(config).optional_number("rope_theta") or config.optional_number("rope_theta") or 10_000.0


def _rope_scaling_type(config: Config) -> str | None:
    kind = _rope_kind(config)
    return kind if kind in ("linear", "yarn") else None


def _rope_scaling(name: str) -> Callable[[Config], Number]:
    def read(config: Config) -> Number:
        return _rope(config).optional_number(name) if _rope_scaling_type(config) else None

    return read


def _original_context(config: Config) -> Number:
    if _rope_kind(config) != "yarn":
        return None
    return _rope(config).integer("original_max_position_embeddings")


def _llama3_rope_factors(config: Config) -> list[GeneratedTensor]:
    """The divisors of Llama 3.1's frequencies: slow ones by `factor`, fast ones by one, a ramp between.

    Source: the rope scaling published with Llama 3.1.
    """
    if _rope_kind(config) != "llama3":
        return []
    rope = _rope(config)
    factor = rope.optional_number("factor") or 8.0
    low, high = rope.optional_number("low_freq_factor") or 1.0, rope.optional_number("high_freq_factor") or 4.0
    n_original = rope.optional_number("original_max_position_embeddings") or 8192.0
    if not 0 < low < high or factor <= 0:
        raise CheckpointError("config.json has a rope scaling without a ramp.", "Check low_freq_factor and factor.")
    size, base = head_size(config), _rope_base(config)
    divisors = []
    for pair in range(0, size, 2):
        turns = n_original * base ** (-pair / size) / (2 * math.pi)
        ramp = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1 / ((1 - ramp) / factor + ramp))
    return [GeneratedTensor("rope_freqs.weight", tuple(divisors))]


def _integer(*names: str) -> Callable[[Config], Number]:
    return lambda config: config.integer(*names)


_ATTENTION_DECODER = (
    Hyperparameter("block_count", "u32", _integer("num_hidden_layers")),
    Hyperparameter("context_length", "u32", _integer("max_position_embeddings")),
    Hyperparameter("embedding_length", "u32", _integer("hidden_size")),
    Hyperparameter("feed_forward_length", "u32", _integer("intermediate_size")),
    Hyperparameter("attention.head_count", "u32", _integer("num_attention_heads")),
    Hyperparameter("attention.head_count_kv", "u32", _integer("num_key_value_heads", "num_attention_heads")),
    Hyperparameter("rope.scaling.type", "str", _rope_scaling_type),
    Hyperparameter("rope.scaling.factor", "f32", _rope_scaling("factor")),
    Hyperparameter("rope.scaling.original_context_length", "u32", _original_context),
    Hyperparameter("rope.freq_base", "f32", _rope_base),
    Hyperparameter("attention.layer_norm_rms_epsilon", "f32", lambda config: config.number("rms_norm_eps")),
    Hyperparameter("attention.key_length", "u32", head_size),
    Hyperparameter("attention.value_length", "u32", head_size),
    Hyperparameter("vocab_size", "u32", _integer("vocab_size")),
    Hyperparameter("rope.dimension_count", "u32", head_size),
)


def _decoder_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    n_embd, n_vocab = config.integer("hidden_size"), config.integer("vocab_size")
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (n_embd, n_vocab), "output_norm.weight": (n_embd,)}
    # transformers ties a llama's embeddings only when told to
    return shapes if config.flag("tie_word_embeddings") else shapes | {"output.weight": (n_embd, n_vocab)}


def _dense_layer_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    n_embd, n_ff, size = config.integer("hidden_size"), config.integer("intermediate_size"), head_size(config)
    n_query = size * config.integer("num_attention_heads")
    n_kv = size * config.integer("num_key_value_heads", "num_attention_heads")
    return {
        "attn_norm.weight": (n_embd,),
        "attn_q.weight": (n_embd, n_query),
        "attn_k.weight": (n_embd, n_kv),
        "attn_v.weight": (n_embd, n_kv),
        "attn_output.weight": (n_query, n_embd),
        "ffn_norm.weight": (n_embd,),
        "ffn_gate.weight": (n_embd, n_ff),
        "ffn_up.weight": (n_embd, n_ff),
        "ffn_down.weight": (n_ff, n_embd),
    }


ARCHITECTURES: dict[str, Architecture] = {
    entry.hf_class: entry
    for entry in (
        Architecture(
            hf_class="LlamaForCausalLM",
            gguf_name="llama",
            hyperparameters=_ATTENTION_DECODER,
            row_orders={"ATTN_Q": unpermute_queries, "ATTN_K": unpermute_keys},
            generate=_llama3_rope_factors,
            model_shapes=_decoder_shapes,
            layer_shapes=_dense_layer_shapes,
        ),
    )
}


def architecture_of(config: Config) -> Architecture:
    """The entry for a checkpoint's class. Raises CheckpointError naming it when there is none."""
    classes = config.values.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    raise CheckpointError(
        f"The architecture {name[:64] or 'of this checkpoint'} cannot be converted yet.",
        f"Look for a GGUF of this model, or choose one of {', '.join(ARCHITECTURES)}.",
    )
