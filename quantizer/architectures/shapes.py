"""The tensors that a model must have, as tables of named dimensions, and those dimensions from a config.

Experts are stored as numbered matrices, or all of a layer in one tensor: transformers 5 holds the second form in
memory, and saves it unless the original names are requested. Layers that predict further tokens lie behind the last
layer, or in a module `mtp`; where a checkpoint has more of them than llama.cpp runs, none is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import Cut, StackedTensor, whole_tensor
from quantizer.convert.source_model import FileTensor, SourceTensor

# Tensor name -> its dimensions in ggml order, each a number or a name of DIMENSIONS.
Dimensions: TypeAlias = Mapping[str, tuple[str | int, ...]]
# The tensors of every layer, or a function of the config and the number of the layer.
LayerTensors: TypeAlias = Dimensions | Callable[[Config, int], Dimensions]


@dataclass(frozen=True, slots=True)
class Stack:
    """Numbered tensors after `container` that llama.cpp stores as one: `x<container>7.y` is slice 7 of `x<merged>y`."""

    container: str
    merged: str
    count: Callable[[Config], int]


def head_size(config: Config) -> int:
    """Return the width of one attention head."""
    explicit = config.optional_integer("head_dim")
    if explicit is not None:
        return explicit
    n_heads = config.integer("num_attention_heads")
    if n_heads == 0 or config.integer("hidden_size") % n_heads:
        raise CheckpointError(
            f"hidden_size in config.json is not a multiple of its {n_heads} attention heads.", "Check config.json."
        )
    return config.integer("hidden_size") // n_heads


def even_head_size(config: Config) -> int:
    """Return the width of a head where all of them together are as wide as the model."""
    return config.integer("hidden_size") // max(1, config.integer("num_attention_heads"))


def n_feed_forward(config: Config) -> int:
    """Return the width of the feed-forwards, which may be listed layer by layer. Raises CheckpointError for several."""
    widths = config.values.get("intermediate_size")
    if isinstance(widths, list) and widths and all(width == widths[0] for width in widths):
        return Config({"intermediate_size": widths[0]}).integer("intermediate_size")
    return config.integer("intermediate_size")


def n_patches_per_side(config: Config) -> int:
    """Return the patches in a row of a tower's picture. Raises CheckpointError for patches of no size."""
    if not 0 < config.integer("patch_size") <= config.integer("image_size"):
        raise CheckpointError(
            "patch_size in config.json is 0 or larger than image_size.", "Check patch_size and image_size."
        )
    return config.integer("image_size") // config.integer("patch_size")


def _n_query(config: Config) -> int:
    return head_size(config) * config.integer("num_attention_heads")


def _n_kv(config: Config) -> int:
    return head_size(config) * config.integer("num_key_value_heads", "num_attention_heads")


def _n_linear_values(config: Config) -> int:
    return config.integer("linear_value_head_dim") * config.integer("linear_num_value_heads")


def _n_ssm_inner(config: Config) -> int:
    return config.integer("num_heads") * config.integer("head_dim")


def _n_ssm_channels(config: Config) -> int:
    """Return the width of Mamba-2's convolution: the inner states, and two vectors of each group."""
    return _n_ssm_inner(config) + 2 * config.integer("n_groups") * config.integer("state_size")


DIMENSIONS: Mapping[str, Callable[[Config], int]] = {
    "n_embd": lambda config: config.integer("hidden_size"),
    "n_vocab": lambda config: config.integer("vocab_size"),
    "n_positions": lambda config: config.integer("max_position_embeddings"),
    "n_token_types": lambda config: config.integer("type_vocab_size"),
    "n_labels": lambda config: len(config.section("id2label").values),
    "n_ff": n_feed_forward,
    "2 n_ff": lambda config: 2 * config.integer("intermediate_size"),
    "n_head": head_size,
    "n_query": _n_query,
    "n_kv": _n_kv,
    "n_qkv": lambda config: _n_query(config) + 2 * _n_kv(config),
    "n_expert": lambda config: config.integer("num_local_experts", "num_experts", "n_routed_experts"),
    # experts may have another width than `intermediate_size`
    "n_ff_expert": lambda config: config.integer("moe_intermediate_size", "intermediate_size"),
    "n_ff_shared_experts": lambda config: config.integer("n_shared_experts") * config.integer("moe_intermediate_size"),
    "n_heads": lambda config: config.integer("num_attention_heads"),
    "n_nope": lambda config: config.integer("qk_nope_head_dim"),
    "n_value": lambda config: config.integer("v_head_dim"),
    "n_values": lambda config: config.integer("v_head_dim") * config.integer("num_attention_heads"),
    "n_q_rank": lambda config: config.integer("q_lora_rank"),
    "n_kv_rank": lambda config: config.integer("kv_lora_rank"),
    "n_kv_rank_and_rope": lambda config: config.integer("kv_lora_rank") + config.integer("qk_rope_head_dim"),
    "n_mla_query": lambda config: (
        (config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim"))
        * config.integer("num_attention_heads")
    ),
    "n_conv": lambda config: config.integer("conv_kernel"),
    "n_state": lambda config: config.integer("state_size"),
    "n_step": lambda config: config.integer("time_step_rank"),
    "n_step_and_states": lambda config: config.integer("time_step_rank") + 2 * config.integer("state_size"),
    "2 n_query": lambda config: 2 * _n_query(config),
    "n_linear_conv": lambda config: config.integer("linear_conv_kernel_dim"),
    "n_linear_head": lambda config: config.integer("linear_value_head_dim"),
    "n_linear_heads": lambda config: config.integer("linear_num_value_heads"),
    "n_linear_values": _n_linear_values,
    "n_linear_qkv": lambda config: (
        2 * config.integer("linear_key_head_dim") * config.integer("linear_num_key_heads") + _n_linear_values(config)
    ),
    "n_mamba": lambda config: 2 * config.integer("hidden_size"),
    "2 n_mamba": lambda config: 4 * config.integer("hidden_size"),
    "n_ssm_heads": lambda config: config.integer("num_heads"),
    "n_ssm_inner": _n_ssm_inner,
    "n_ssm_groups": lambda config: config.integer("n_groups"),
    "n_ssm_group": lambda config: _n_ssm_inner(config) // max(1, config.integer("n_groups")),
    "n_ssm_channels": _n_ssm_channels,
    "n_ssm_projection": lambda config: _n_ssm_inner(config) + _n_ssm_channels(config) + config.integer("num_heads"),
    "n_ff_shared": lambda config: config.integer("shared_expert_intermediate_size"),
    "n_nope_and_value": lambda config: (
        (config.integer("qk_nope_head_dim") + config.integer("v_head_dim")) * config.integer("num_attention_heads")
    ),
    "n_distances": lambda config: config.integer("relative_attention_num_buckets"),
    # GPT-2's rule for a width that the config leaves open
    "n_ff_wide": lambda config: config.optional_integer("intermediate_size") or 4 * config.integer("hidden_size"),
    "2 n_ff_expert": lambda config: 2 * config.integer("moe_intermediate_size"),
    "2 n_linear_heads": lambda config: 2 * config.integer("linear_num_value_heads"),
    "n_per_layer": lambda config: config.integer("hidden_size_per_layer_input"),
    "n_per_layers": lambda config: config.integer("hidden_size_per_layer_input") * config.integer("num_hidden_layers"),
    # of towers: the width of the language model, and pixels and patches of a picture
    "3 n_embd": lambda config: 3 * config.integer("hidden_size"),
    "n_projected": lambda config: config.section("language").integer("hidden_size"),
    "n_patch": lambda config: config.integer("patch_size"),
    "n_patches": lambda config: n_patches_per_side(config) ** 2,
    "2 n_embd": lambda config: 2 * config.integer("hidden_size"),
    "n_index_head": lambda config: config.integer("index_head_dim"),
    "n_index_heads": lambda config: config.integer("index_n_heads"),
    "n_index_query": lambda config: config.integer("index_head_dim") * config.integer("index_n_heads"),
}

PRE_NORMS: Dimensions = {"attn_norm.weight": ("n_embd",), "ffn_norm.weight": ("n_embd",)}
# of models that call the norm before the feed-forward one after attention
NORMS_OF_ATTENTION: Dimensions = {"attn_norm.weight": ("n_embd",), "post_attention_norm.weight": ("n_embd",)}
POST_NORMS: Dimensions = {"post_attention_norm.weight": ("n_embd",), "post_ffw_norm.weight": ("n_embd",)}
ATTENTION: Dimensions = {
    "attn_q.weight": ("n_embd", "n_query"),
    "attn_k.weight": ("n_embd", "n_kv"),
    "attn_v.weight": ("n_embd", "n_kv"),
    "attn_output.weight": ("n_query", "n_embd"),
}
FUSED_ATTENTION: Dimensions = {"attn_qkv.weight": ("n_embd", "n_qkv"), "attn_output.weight": ("n_query", "n_embd")}
HEAD_NORMS: Dimensions = {"attn_q_norm.weight": ("n_head",), "attn_k_norm.weight": ("n_head",)}


def feed_forward(width: str | int, ending: str = "") -> Dimensions:
    """Return the matrices of a gated feed-forward; `ending` is `_shexp` for that of the shared experts."""
    return {
        f"ffn_gate{ending}.weight": ("n_embd", width),
        f"ffn_up{ending}.weight": ("n_embd", width),
        f"ffn_down{ending}.weight": (width, "n_embd"),
    }


GATED_FEED_FORWARD = feed_forward("n_ff")
UNGATED_FEED_FORWARD: Dimensions = {"ffn_up.weight": ("n_embd", "n_ff"), "ffn_down.weight": ("n_ff", "n_embd")}
# attention with the norms before it and before the feed-forward, and the layer that most decoders vary
NORMED_ATTENTION: Dimensions = {**PRE_NORMS, **ATTENTION}
LLAMA_LAYER: Dimensions = {**NORMED_ATTENTION, **GATED_FEED_FORWARD}
FUSED_FEED_FORWARD: Dimensions = {"ffn_up.weight": ("n_embd", "2 n_ff"), "ffn_down.weight": ("n_ff", "n_embd")}
EXPERT_FEED_FORWARD: Dimensions = {
    "ffn_gate_inp.weight": ("n_embd", "n_expert"),
    "ffn_gate_exps.weight": ("n_embd", "n_ff_expert", "n_expert"),
    "ffn_up_exps.weight": ("n_embd", "n_ff_expert", "n_expert"),
    "ffn_down_exps.weight": ("n_ff_expert", "n_embd", "n_expert"),
}
BIASED_EXPERTS: Dimensions = {**EXPERT_FEED_FORWARD, "exp_probs_b.bias": ("n_expert",)}
SHARED_EXPERTS = feed_forward("n_ff_shared_experts", "_shexp")


def without(tensors: Dimensions, *names: str) -> Dimensions:
    return {name: extents for name, extents in tensors.items() if name not in names}


def biases(weights: Dimensions) -> Dimensions:
    """Return the biases of these weights: a number for each row; a norm's is as long as the norm."""
    return {name.replace(".weight", ".bias"): extents[1:] or extents for name, extents in weights.items()}


QKV_BIASES = biases(without(ATTENTION, "attn_output.weight"))


def attention_biases(config: Config, by_default: bool) -> Dimensions:
    """Return the biases of queries, keys and values if `attention_bias` has them, None meaning `by_default`."""
    configured = config.flag("attention_bias")
    return QKV_BIASES if (by_default if configured is None else configured) else {}


def decoder(config: Config) -> Dimensions:
    """Return the tensors outside the layers; transformers ties embeddings and output only when the config has it so."""
    tensors: Dimensions = {"token_embd.weight": ("n_embd", "n_vocab"), "output_norm.weight": ("n_embd",)}
    is_tied = config.flag("tie_word_embeddings")
    return tensors if is_tied else {**tensors, "output.weight": ("n_embd", "n_vocab")}


def decoder_body(config: Config) -> Dimensions:
    """Return the tensors outside the layers of a model that makes embeddings."""
    return without(decoder(config), "output.weight")


def decoder_with_bias(config: Config) -> Dimensions:
    """Return like `decoder`, with a bias on the last norm."""
    return {**decoder(config), "output_norm.bias": ("n_embd",)}


def resolve_shapes(tensors: Dimensions, config: Config) -> dict[str, tuple[int, ...]]:
    """Return tensor name -> shape in ggml order."""
    return {
        name: tuple(extent if isinstance(extent, int) else DIMENSIONS[extent](config) for extent in extents)
        for name, extents in tensors.items()
    }


def matrices(tensor: FileTensor) -> Iterator[FileTensor]:
    """Yield the matrix of each expert. Raises CheckpointError unless the tensor has three dimensions."""
    if len(tensor.shape) != 3:
        raise CheckpointError(f"{tensor.name} does not hold a matrix for each expert.", "Check the checkpoint.")
    n_rows, n_experts = tensor.shape[1:]
    for start in range(0, n_rows * n_experts, n_rows):
        yield tensor.rows(start, start + n_rows)


def each_matrix(change: Callable[[FileTensor, str, Config], SourceTensor]) -> Cut:
    """Return the cut that stacks what `change` makes of the matrix of each expert, the name and the config."""

    def cut(tensor: FileTensor, name: str, config: Config) -> StackedTensor:
        return StackedTensor(name, tuple(change(matrix, name, config) for matrix in matrices(tensor)))

    return cut


# what the layer that predicts one token further has beside those of another
PREDICTION: Dimensions = {
    "nextn.eh_proj.weight": ("2 n_embd", "n_embd"),
    "nextn.enorm.weight": ("n_embd",),
    "nextn.hnorm.weight": ("n_embd",),
}
NUMBERED_EXPERTS = (Stack(".experts.", ".experts.", DIMENSIONS["n_expert"]),)
FUSED_EXPERTS: dict[str, dict[str, Cut]] = {
    ".experts.gate_up_proj": {
        ".experts.gate_proj.weight": each_matrix(lambda both, *_: both.rows(0, both.shape[1] // 2)),
        ".experts.up_proj.weight": each_matrix(lambda both, *_: both.rows(both.shape[1] // 2, both.shape[1])),
    },
    ".experts.down_proj": {".experts.down_proj.weight": whole_tensor},
}
# what corrects the choice of experts is stored without the ending that gguf's map asks for
CHOICE_CORRECTION: dict[str, dict[str, Cut]] = {"e_score_correction_bias": {"e_score_correction.bias": whole_tensor}}


# the setting that holds their number, which no config.json decides
N_PREDICTION_LAYERS = "n_prediction_layers"
_IN_MODULE = re.compile(r"(?:model\.)?mtp\.(.+)")
_NUMBERED = re.compile(r"layers\.(\d{1,6})\.(.+)")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,6})\.")
# names in the module -> those behind the last layer
_USUAL = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}


def count_prediction_layers(config: Config, names: Iterable[str] | None, n_most: int) -> int:
    """Return how many such layers the tensors of these `names` have, without names the config; 0 for over `n_most`."""
    if names is None:
        n_declared = config.optional_integer("num_nextn_predict_layers", "mtp_num_hidden_layers") or 0
        return n_declared if n_declared <= n_most else 0
    n_layers = config.integer("num_hidden_layers")
    usual = [usual_name(name, n_layers) for name in names]
    later = {number for name in usual if (match := _LAYER.search(name)) and (number := int(match[1])) >= n_layers}
    with_projection = {number for number in later if any(f"layers.{number}.eh_proj." in name for name in usual)}
    is_whole = later == with_projection == set(range(n_layers, n_layers + len(later)))
    return len(later) if is_whole and len(later) <= n_most else 0


def n_all_layers(config: Config) -> int:
    """Return the number of layers, with those that predict further where they are kept."""
    return config.integer("num_hidden_layers") + (config.optional_integer(N_PREDICTION_LAYERS) or 0)


def usual_name(name: str, n_layers: int) -> str:
    """Return the name that a tensor of the module has behind the last of `n_layers`, any other name as it is."""
    if not (match := _IN_MODULE.fullmatch(name)):
        return name
    if inner := _NUMBERED.fullmatch(match[1]):
        return f"model.layers.{n_layers + int(inner[1])}.{inner[2]}"
    part, dot, rest = match[1].partition(".")
    return f"model.layers.{n_layers}.{_USUAL.get(part, part)}{dot}{rest}"
