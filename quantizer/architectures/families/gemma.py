"""Gemma. Norms of Gemma 1 to 3 multiply by one more than the weight, and embeddings are the output. EmbeddingGemma:
Gemma 3 without a causal mask and without an output, with two linear modules behind the pooling.

Norms of Gemma 3n and 4 multiply by the weight itself, values are normalised too, and each layer may get an embedding of
the token of its own. Their last layers compute no keys or values: they read those of the last layer of their kind, with
a window or without, that does. Gemma 3n keeps four streams between its layers (AltUp), and its graph in llama.cpp has
the numbers of the published models built in. Gemma 4's layers without a window have heads of another size, a quarter of
them rotated, and may do without values; in one of its models every feed-forward has experts beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Layout, RequiredTensors, Settings, TensorNames, Value
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import Cut, ExtendedTensor, RowFactors, plus_one, whole_tensor
from quantizer.convert.source_model import GeneratedTensor

_SOFTCAP = rows.f32("final_logit_softcapping", rows.number("final_logit_softcapping"))
_NORMS = ("ATTN_NORM", "ATTN_POST_NORM", "FFN_NORM", "FFN_PRE_NORM", "FFN_POST_NORM", "OUTPUT_NORM")
_ACTIVATION = {"hidden_activation": "gelu_pytorch_tanh"}


def _query_scale(n_layers_of_27b: int = 0) -> RowFactors:
    """Return what queries are multiplied with, which llama.cpp divides by the root of a head's size.

    In the model of 27B it is that of the hidden size over the heads.
    """

    def factors(config: Config, n_rows: int) -> npt.NDArray[np.float32]:
        own = config.integer("hidden_size") // config.integer("num_attention_heads")
        own = own if config.integer("num_hidden_layers") == n_layers_of_27b else shapes.head_size(config)
        wanted = config.optional_number("query_pre_attn_scalar") or own
        return np.full(n_rows, math.sqrt(own / wanted), np.float32)

    return factors


_GEMMA_3 = Architecture(
    hf_classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    gguf_name="gemma3",
    hyperparameters=(
        *(rows.DECODER + rows.RMS_NORM + rows.WINDOW + rows.WINDOW_ROPE),
        _SOFTCAP,
        rows.windows_unless_every(6),
    ),
    tensors=RequiredTensors(
        layer={
            **shapes.PRE_NORMS,
            **shapes.POST_NORMS,
            **shapes.ATTENTION,
            **shapes.HEAD_NORMS,
            **shapes.GATED_FEED_FORWARD,
        }
    ),
    names=TensorNames(skipped_modules=("vision_tower.", "multi_modal_projector.")),
    layout=Layout(
        value_maps=dict.fromkeys((*_NORMS, "ATTN_Q_NORM", "ATTN_K_NORM"), plus_one),
        row_factors={"ATTN_Q_NORM": _query_scale(62)},
    ),
    settings=Settings(
        # the smaller vision models have only settings that differ from these
        defaults={
            "tie_word_embeddings": True,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
        },
        assumed={
            **_ACTIVATION,
            "use_bidirectional_attention": False,
        },
    ),
)

_EMBEDDING_GEMMA = replace(
    _GEMMA_3,
    hf_classes=("Gemma3TextModel",),
    gguf_name="gemma-embedding",
    names=replace(_GEMMA_3.names, skipped_modules=(), renames={r"^(?!model\.|dense_)": "model."}),
    settings=_GEMMA_3.settings.plus(
        defaults={"use_bidirectional_attention": False},
        assumed={"tie_word_embeddings": True, "use_bidirectional_attention": True},
    ),
    layout=replace(_GEMMA_3.layout, row_factors={"ATTN_Q_NORM": _query_scale()}),
    dense_modules=("dense_2", "dense_3"),
)


# a cap changes x by the share (x / cap)² / 3; powers of two add no rounding
_OUT_OF_REACH = 2.0**20
# on GPUs queries are divided by this one and then rounded to F16, which ends at 2^-24
_HARDLY_REACHED = 2.0**12


def _cap(setting: str, none: float) -> Callable[[Config], Value]:
    return lambda config: config.optional_number(setting) or none


def _uncapped_attention(config: Config) -> tuple[str, ...]:
    if config.optional_number("attn_logit_softcapping"):
        return ()
    return (
        f"The model does not cap attention scores, llama.cpp always does: the cap is set to {_HARDLY_REACHED:,.0f},"
        " which changes a score of 50 by 0.0025.",
    )


GEMMA = (
    Architecture(
        hf_classes=("GemmaForCausalLM",),
        gguf_name="gemma",
        hyperparameters=rows.DECODER + rows.RMS_NORM,
        tensors=RequiredTensors(layer=shapes.LLAMA_LAYER),
        layout=Layout(value_maps=dict.fromkeys(_NORMS, plus_one)),
        settings=Settings(defaults={"tie_word_embeddings": True}, assumed={**_ACTIVATION, "tie_word_embeddings": True}),
    ),
    Architecture(
        hf_classes=("Gemma2ForCausalLM",),
        gguf_name="gemma2",
        hyperparameters=(
            *(rows.DECODER + rows.RMS_NORM + rows.WINDOW),
            rows.windows_unless_every(2, setting=""),
            # llama.cpp caps both in any case; without these rows by the usual values
            rows.f32("final_logit_softcapping", _cap("final_logit_softcapping", _OUT_OF_REACH)),
            rows.f32("attn_logit_softcapping", _cap("attn_logit_softcapping", _HARDLY_REACHED)),
        ),
        tensors=RequiredTensors(
            layer={**shapes.PRE_NORMS, **shapes.POST_NORMS, **shapes.ATTENTION, **shapes.GATED_FEED_FORWARD}
        ),
        layout=Layout(value_maps=dict.fromkeys(_NORMS, plus_one), row_factors={"ATTN_Q": _query_scale(46)}),
        settings=Settings(defaults={"tie_word_embeddings": True}, assumed={**_ACTIVATION, "tie_word_embeddings": True}),
        approximations=_uncapped_attention,
    ),
    _GEMMA_3,
    _EMBEDDING_GEMMA,
)


_TOWERS = ("vision_tower.", "embed_vision.", "vision_embedder.", "audio_tower.", "embed_audio.")
# without this row llama.cpp would cap them by 30, by zero it caps nothing
_ALWAYS_SOFTCAP = rows.f32(
    "final_logit_softcapping", lambda config: config.optional_number("final_logit_softcapping") or 0.0
)
_SHARING = (
    rows.u32("attention.shared_kv_layers", "num_kv_shared_layers"),
    rows.u32("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
)
_ASSUMED: dict[str, Any] = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}
# what Gemma 3n and the smaller models of Gemma 4 have in each layer, and outside of them
_PER_LAYER: shapes.Dimensions = {
    "inp_gate.weight": ("n_embd", "n_per_layer"),
    "proj.weight": ("n_per_layer", "n_embd"),
    "post_norm.weight": ("n_embd",),
}
_PER_LAYER_EMBEDDINGS: shapes.Dimensions = {
    "per_layer_token_embd.weight": ("n_per_layers", "n_vocab"),
    "per_layer_model_proj.weight": ("n_embd", "n_per_layers"),
    "per_layer_proj_norm.weight": ("n_per_layer",),
}


# the embeddings of the layers, in which transformers has images and sounds use those of token 0
_EMBEDDINGS: dict[str, dict[str, Cut]] = {
    ".embed_tokens_per_layer.weight": {
        ".embed_tokens_per_layer.weight": lambda tensor, name, config: ExtendedTensor(
            tensor, name, max(tensor.shape[-1], config.integer("vocab_size"))
        )
    }
}

_N_STREAMS, _N_LAUREL, _N_PER_LAYER = 4, 64, 256
_N_OWN, _N_SPARSE = 20, 10  # layers with keys and values, and with sparse feed-forwards
_N_LAYERS_OF_KIND = 5  # the last of five has no window


def _borrowed(config: Config) -> dict[str, str]:
    """Return what llama.cpp reads of the layers without keys and values, but does not use: what they stand for."""
    tensors = {}
    for i in range(_N_OWN, config.integer("num_hidden_layers")):
        own = _N_OWN - 1 if (i + 1) % _N_LAYERS_OF_KIND == 0 else _N_OWN - 2
        names = ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
        tensors.update({f"blk.{i}.{name}": f"blk.{own}.{name}" for name in names})
    return tensors


GEMMA_3N = Architecture(
    hf_classes=("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
    gguf_name="gemma3n",
    hyperparameters=(
        *(rows.DECODER + rows.RMS_NORM + rows.WINDOW + rows.WINDOW_PATTERN + rows.WINDOW_ROPE),
        _ALWAYS_SOFTCAP,
        *_SHARING,
        rows.u32("altup.active_idx", "altup_active_idx"),
        rows.u32("altup.num_inputs", "altup_num_inputs"),
    ),
    tensors=RequiredTensors(
        model=lambda config: {
            **shapes.decoder(config),
            **_PER_LAYER_EMBEDDINGS,
            "altup_proj.weight": ("n_embd", "n_embd", _N_STREAMS - 1),
            "altup_unembd_proj.weight": ("n_embd", "n_embd", _N_STREAMS - 1),
        },
        layer={
            **shapes.PRE_NORMS,
            **shapes.POST_NORMS,
            **shapes.ATTENTION,
            **shapes.HEAD_NORMS,
            **shapes.GATED_FEED_FORWARD,
            **_PER_LAYER,
            "altup_correct_coef.weight": (_N_STREAMS, _N_STREAMS),
            "altup_correct_scale.weight": ("n_embd",),
            "altup_predict_coef.weight": (_N_STREAMS, _N_STREAMS**2),
            "altup_router.weight": ("n_embd", _N_STREAMS),
            "altup_router_norm.weight": ("n_embd",),
            "laurel_l.weight": ("n_embd", _N_LAUREL),
            "laurel_r.weight": (_N_LAUREL, "n_embd"),
            "laurel_post_norm.weight": ("n_embd",),
        },
        borrowed=_borrowed,
    ),
    names=TensorNames(skipped_modules=_TOWERS),
    layout=Layout(
        splits={**_EMBEDDINGS, ".correct_output_scale": {".correct_output_scale.weight": whole_tensor}},
        stacks=tuple(
            shapes.Stack(f".{name}.", f".{name}.", lambda _config: _N_STREAMS - 1)
            for name in ("altup_projections", "altup_unembed_projections")
        ),
    ),
    settings=Settings(
        defaults={
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "final_logit_softcapping": 30.0,
            "num_kv_shared_layers": 15,
            "hidden_size_per_layer_input": _N_PER_LAYER,
            "laurel_rank": _N_LAUREL,
            "altup_num_inputs": _N_STREAMS,
            "altup_active_idx": 0,
        },
        assumed={
            **_ASSUMED,
            "layer_types": rows.windows_but_every(_N_LAYERS_OF_KIND),
            "num_kv_shared_layers": lambda config: config.integer("num_hidden_layers") - _N_OWN,
            "activation_sparsity_pattern": rows.each_layer(lambda _config, i: 0.95 if i < _N_SPARSE else 0.0),
            "hidden_size_per_layer_input": _N_PER_LAYER,
            "laurel_rank": _N_LAUREL,
            "altup_num_inputs": _N_STREAMS,
            "altup_active_idx": 0,
            "altup_correct_scale": True,
            "final_logit_softcapping": 30.0,
        },
    ),
)


def _kinds(config: Config) -> list[str]:
    """Return the kinds of all layers. Raises CheckpointError when config.json lists others than transformers knows."""
    kinds = config.values.get("layer_types")
    if kinds is None:
        return [*rows.windows_but_every(6)(config)[:-1], "full_attention"]
    n_layers = config.integer("num_hidden_layers")
    if not isinstance(kinds, list) or len(kinds) != n_layers or set(kinds) - {"sliding_attention", "full_attention"}:
        cause = f"config.json does not state which of {n_layers} layers have a sliding window."
        raise CheckpointError(cause, "Check layer_types.")
    return kinds


def _of_full(config: Config, setting: str, published: str) -> int | None:
    """Return a setting of the layers without a window, as transformers 5 saves it or as the models have it."""
    if (value := config.optional_integer(published)) is not None:
        return value
    layers = config.section("per_layer_config")
    full = (layers.section(str(i)) for i, kind in enumerate(_kinds(config)) if kind == "full_attention")
    return next((value for layer in full if (value := layer.optional_integer(setting)) is not None), None)


def _full_head(config: Config) -> int:
    size = _of_full(config, "head_dim", "global_head_dim")
    return 512 if size is None else size


def _shares_keys(config: Config) -> bool:
    return config.flag("attention_k_eq_v") or False


def _kv_heads(config: Config) -> list[int]:
    n_windowed = config.integer("num_key_value_heads")
    n_full = _of_full(config, "num_key_value_heads", "num_global_key_value_heads") if _shares_keys(config) else None
    n_full = n_windowed if n_full is None else n_full
    return [n_windowed if kind == "sliding_attention" else n_full for kind in _kinds(config)]


def _n_own(config: Config) -> int:
    return config.integer("num_hidden_layers") - config.integer("num_kv_shared_layers")


def _widths(config: Config) -> list[int]:
    """Return the widths of all feed-forwards: those of layers without keys and values may be twice as wide."""
    width = config.integer("intermediate_size")
    wide = 2 * width if config.flag("use_double_wide_mlp") else width
    return [width if i < _n_own(config) else wide for i in range(config.integer("num_hidden_layers"))]


def _has_experts(config: Config) -> bool:
    return config.flag("enable_moe_block") or False


def _has_per_layer(config: Config) -> bool:
    return config.integer("hidden_size_per_layer_input") > 0


def _gemma_4_layer(config: Config, i: int) -> shapes.Dimensions:
    is_full, n_heads = _kinds(config)[i] == "full_attention", config.integer("num_attention_heads")
    size = _full_head(config) if is_full else shapes.head_size(config)
    tensors: shapes.Dimensions = {
        **shapes.PRE_NORMS,
        **shapes.POST_NORMS,
        "attn_q.weight": ("n_embd", size * n_heads),
        "attn_q_norm.weight": (size,),
        "attn_output.weight": (size * n_heads, "n_embd"),
        **shapes.feed_forward(_widths(config)[i]),
        "layer_output_scale.weight": (1,),
    }
    if i < _n_own(config):
        kv = size * _kv_heads(config)[i]
        tensors = {**tensors, "attn_k.weight": ("n_embd", kv), "attn_k_norm.weight": (size,)}
        if not (is_full and _shares_keys(config)):
            tensors = {**tensors, "attn_v.weight": ("n_embd", kv)}
    per_layer = _PER_LAYER if _has_per_layer(config) else {}
    return {**tensors, **per_layer, **(_EXPERTS if _has_experts(config) else {})}


_EXPERTS: shapes.Dimensions = {
    "pre_ffw_norm_2.weight": ("n_embd",),
    "post_ffw_norm_1.weight": ("n_embd",),
    "post_ffw_norm_2.weight": ("n_embd",),
    "ffn_gate_inp.weight": ("n_embd", "n_expert"),
    "ffn_gate_inp.scale": ("n_embd",),
    "ffn_gate_up_exps.weight": ("n_embd", "2 n_ff_expert", "n_expert"),
    "ffn_down_exps.weight": ("n_ff_expert", "n_embd", "n_expert"),
    "ffn_down_exps.scale": ("n_expert",),
}


def _frequency_divisors(config: Config) -> list[GeneratedTensor]:
    """Return the divisors of the layers without a window, which keep most numbers of a head from being rotated."""
    rows.kind_of(config, ("proportional",))
    rope, n_pairs = rows.rope_of(config), _full_head(config) // 2
    share = rope.optional_number("partial_rotary_factor")
    n_rotated = int((1.0 if share is None else share) * _full_head(config) // 2)
    factor = rope.optional_number("factor") or 1.0
    if not 0 <= n_rotated <= n_pairs or factor <= 0:
        raise CheckpointError(
            "config.json has an invalid partial rotation or rope factor.", "Check partial_rotary_factor."
        )
    return [GeneratedTensor("rope_freqs.weight", (factor,) * n_rotated + (1e30,) * (n_pairs - n_rotated))]


def _sharing(config: Config) -> int:
    """Return the number of layers that share if llama.cpp finds whose keys they read: the last two with their own."""
    n_shared, n_own = config.integer("num_kv_shared_layers"), _n_own(config)
    ends_right = n_own >= 2 and _kinds(config)[n_own - 2 : n_own] == ["sliding_attention", "full_attention"]
    return n_shared if ends_right else 0


_REPLACED = ("attention.head_count_kv", "attention.key_length", "attention.value_length", "feed_forward_length")

_GEMMA_4 = Architecture(
    hf_classes=("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    gguf_name="gemma4",
    hyperparameters=(
        *rows.without(rows.DECODER, *_REPLACED, "rope.scaling."),
        *(rows.RMS_NORM + rows.WINDOW + rows.WINDOW_ROPE),
        _ALWAYS_SOFTCAP,
        *_SHARING,
        rows.bool_list(
            "attention.sliding_window_pattern", lambda config: [kind == "sliding_attention" for kind in _kinds(config)]
        ),
        rows.u32_list("attention.head_count_kv", _kv_heads),
        rows.u32("attention.key_length", _full_head),
        rows.u32("attention.value_length", _full_head),
        rows.u32("attention.key_length_swa", shapes.head_size),
        rows.u32("attention.value_length_swa", shapes.head_size),
        rows.u32("rope.dimension_count", _full_head),
        rows.u32("rope.dimension_count_swa", shapes.head_size),
        rows.u32_list("feed_forward_length", _widths),
        *rows.where(
            _has_experts, (*rows.EXPERTS, rows.u32("expert_feed_forward_length", shapes.DIMENSIONS["n_ff_expert"]))
        ),
    ),
    tensors=RequiredTensors(
        model=lambda config: {**shapes.decoder(config), **(_PER_LAYER_EMBEDDINGS if _has_per_layer(config) else {})},
        layer=_gemma_4_layer,
        generate=_frequency_divisors,
    ),
    names=TensorNames(suffixes=(".scale",), skipped_modules=_TOWERS),
    layout=Layout(
        splits={
            **_EMBEDDINGS,
            ".layer_scalar": {".layer_scalar.weight": whole_tensor},
            ".experts.gate_up_proj": {".experts.gate_up_proj.weight": whole_tensor},
            ".experts.down_proj": {".experts.down_proj.weight": whole_tensor},
            ".router.scale": {".router.proj.scale": whole_tensor},
            ".router.per_expert_scale": {".experts.down_proj.scale": whole_tensor},
        }
    ),
    settings=Settings(
        aliases={"top_k_experts": "num_experts_per_tok"},
        defaults={
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-6,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 256,
        },
        assumed={**_ASSUMED, "use_bidirectional_attention": "vision", "num_kv_shared_layers": _sharing},
    ),
)

# the model without towers has no embeddings for its layers, and no setting that says so
_UNIFIED = replace(
    _GEMMA_4,
    hf_classes=("Gemma4UnifiedForConditionalGeneration",),
    settings=_GEMMA_4.settings.plus(defaults={"hidden_size_per_layer_input": 0}),
)


def _assistant_layer(config: Config, i: int) -> shapes.Dimensions:
    return shapes.without(_gemma_4_layer(config, i), "attn_k.weight", "attn_k_norm.weight", "attn_v.weight")


# a head that drafts: layers without keys and values, between projections from and to the width of its model
_ASSISTANT = replace(
    _GEMMA_4,
    hf_classes=("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"),
    gguf_name="gemma4-assistant",
    hyperparameters=(
        *(row for row in _GEMMA_4.hyperparameters if row not in (_ALWAYS_SOFTCAP, *_SHARING)),
        rows.u32("embedding_length_out", "backbone_hidden_size"),
        rows.u32("nextn_predict_layers", "num_hidden_layers"),
    ),
    tensors=replace(
        _GEMMA_4.tensors,
        model=lambda config: {
            **shapes.without(shapes.decoder(config), "output.weight"),
            "nextn.pre_projection.weight": (2 * config.integer("backbone_hidden_size"), "n_embd"),
            "nextn.post_projection.weight": ("n_embd", config.integer("backbone_hidden_size")),
        },
        layer=_assistant_layer,
    ),
    names=TensorNames(
        map_of="gemma4",
        own={f"{what}_projection": f"nextn.{what}_projection" for what in ("pre", "post")},
        # an index of the embedding, which llama.cpp does not use
        unused=("masked_embedding.",),
    ),
    settings=replace(
        _GEMMA_4.settings,
        defaults={**_GEMMA_4.settings.defaults, "hidden_size_per_layer_input": 0},
        assumed={**_ASSUMED, "tie_word_embeddings": True},
    ),
    is_draft_head=True,
)

GEMMA_4 = (_GEMMA_4, _UNIFIED, _ASSISTANT)
