"""Llama and its relatives: rotated by neighbours in llama.cpp, by halves in transformers, so q and k are reordered.

Their bodies turn texts into vectors, one of them (Llama Embed Nemotron) without a causal mask. Granite with experts:
gate and up lie in one matrix, of the experts as well as of the feed-forward that all tokens share; where there are no
experts, that one is the feed-forward. Granite 4 has Mamba-2 in most layers, and may do without positions; hybrids in
which every layer attends are plain Granite to llama.cpp. Granite with windows (Swash, which gguf lacks): each head has
a sink, some layers may do without positions, and what all tokens share stays one matrix. MiniCPM: a Granite whose
scales follow from its sizes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Layout, RequiredTensors, Settings, Value
from quantizer.architectures.families.draft_heads import eagle3_variant
from quantizer.architectures.families.recurrent import (
    MAMBA_2_LAYOUT,
    mamba_2_mixer,
    mamba_2_rows,
    mamba_2_settings,
    no_limit,
)
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import Cut, rows_in, unpermute_keys, unpermute_queries, whole_tensor

# Falcon 3 and many others are this class too
_LLAMA = Architecture(
    hf_classes=("LlamaForCausalLM", "LLaMAForCausalLM", "InternLM3ForCausalLM"),
    gguf_name="llama",
    hyperparameters=rows.DIVIDED_DECODER + rows.RMS_NORM + rows.VOCABULARY + rows.ROTATED,
    tensors=RequiredTensors(layer=shapes.LLAMA_LAYER, generate=rows.frequency_divisors),
    layout=Layout(row_orders={"ATTN_Q": unpermute_queries, "ATTN_K": unpermute_keys}),
    settings=Settings(assumed={"hidden_act": "silu"}),
)

_LLAMA_BODY = replace(
    _LLAMA,
    hf_classes=("LlamaModel",),
    tensors=replace(_LLAMA.tensors, model=shapes.decoder_body),
    names=replace(_LLAMA.names, renames={r"^(?!model\.)": "model."}),
)

# a Llama with a window in every layer
_MISTRAL = rows.capped_at_window(replace(_LLAMA, hf_classes=("MistralForCausalLM",)))
_MISTRAL_BODY = replace(_MISTRAL, hf_classes=("MistralModel",), tensors=_LLAMA_BODY.tensors, names=_LLAMA_BODY.names)


def _tempered_context(config: Config) -> Value:
    yarn, rope = rows.yarn_of(config), rows.rope_of(config)
    if yarn or not rope.optional_number("llama_4_scaling_beta"):
        return yarn.n_original if yarn else None
    return rope.optional_integer("original_max_position_embeddings")


# llama.cpp divides by the weight of `mscale_all_dim`, and takes 1 for `mscale`
_TEMPERED_ROPE = rows.divided_rope(
    (
        *rows.without(rows.ROPE, "rope.scaling.attn_factor", "rope.scaling.original_context_length"),
        # the temperature of attention rises from there, whatever the scaling
        rows.u32("rope.scaling.original_context_length", _tempered_context),
        rows.attention_correction(
            lambda config, yarn: (
                rows.mscale(yarn.factor, 1.0)
                / rows.mscale(yarn.factor, rows.rope_of(config).optional_number("mscale_all_dim") or 0.0)
            )
        ),
    )
)

LLAMA_LIKE = (
    replace(_LLAMA, variant=eagle3_variant),
    _LLAMA_BODY,
    _MISTRAL,
    _MISTRAL_BODY,
    replace(
        _LLAMA_BODY,
        hf_classes=("LlamaBidirectionalModel",),
        gguf_name="llama-embed",
        hyperparameters=(*_LLAMA.hyperparameters, rows.boolean("attention.causal", False)),
    ),
    rows.capped_at_window(
        replace(
            _LLAMA,
            hf_classes=("MixtralForCausalLM",),
            hyperparameters=_LLAMA.hyperparameters + rows.EXPERTS,
            tensors=replace(_LLAMA.tensors, layer={**shapes.NORMED_ATTENTION, **shapes.EXPERT_FEED_FORWARD}),
            layout=replace(_LLAMA.layout, stacks=shapes.NUMBERED_EXPERTS, splits=shapes.FUSED_EXPERTS),
        )
    ),
    replace(
        _LLAMA,
        hf_classes=("GraniteForCausalLM",),
        gguf_name="granite",
        hyperparameters=(
            *_LLAMA.hyperparameters,
            rows.f32("attention.scale", rows.number("attention_multiplier")),
            rows.f32("embedding_scale", rows.number("embedding_multiplier")),
            rows.f32("residual_scale", rows.number("residual_multiplier")),
            rows.f32("logit_scale", rows.number("logits_scaling")),
        ),
        # without them llama.cpp would scale by the size of heads
        settings=_LLAMA.settings.plus(
            dict.fromkeys(
                ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"), 1.0
            )
        ),
    ),
    replace(
        _LLAMA,
        hf_classes=("SmolLM3ForCausalLM",),
        gguf_name="smollm3",
        hyperparameters=rows.DECODER + rows.RMS_NORM + rows.VOCABULARY + rows.ROTATED,
        tensors=replace(_LLAMA.tensors, generate=None),
        settings=_LLAMA.settings.plus(
            defaults={"tie_word_embeddings": True},
            assumed={
                "use_sliding_window": False,
                # every fourth layer does without rotation
                "no_rope_layers": lambda config: [int(i % 4 != 3) for i in range(config.integer("num_hidden_layers"))],
            },
        ),
    ),
    rows.capped_at_window(
        replace(
            _LLAMA,
            hf_classes=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
            gguf_name="mistral3",
            hyperparameters=(
                *rows.without(_LLAMA.hyperparameters, "rope."),
                *(rows.ROTATED + _TEMPERED_ROPE),
                # Ministral's own; Mistral Small does without
                rows.f32("rope.scaling.yarn_log_multiplier", rows.rope_number("mscale_all_dim")),
                rows.f32("attention.temperature_scale", rows.rope_number("llama_4_scaling_beta")),
            ),
            names=replace(_LLAMA.names, skipped_modules=("vision_tower.", "multi_modal_projector.")),
        )
    ),
    # the language model of two that see, beside a tower
    replace(
        _LLAMA,
        hf_classes=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
        names=replace(
            _LLAMA.names, skipped_modules=("vision_model.", "connector."), renames={r"^model\.text_model\.": "model."}
        ),
    ),
    replace(
        _LLAMA,
        hf_classes=("ArceeForCausalLM",),
        gguf_name="arcee",
        tensors=replace(_LLAMA.tensors, layer={**shapes.NORMED_ATTENTION, **shapes.UNGATED_FEED_FORWARD}),
        settings=replace(_LLAMA.settings, assumed={"hidden_act": "relu2", "attention_bias": False, "mlp_bias": False}),
    ),
    # rotated by neighbours in transformers too
    replace(
        _LLAMA,
        hf_classes=("HeliumForCausalLM",),
        layout=replace(_LLAMA.layout, row_orders={}),
        settings=replace(_LLAMA.settings, defaults={"rope_theta": 1e5}),
    ),
)


_PLAIN = next(entry for entry in LLAMA_LIKE if entry.gguf_name == "granite")
_ASSUMED = {"hidden_act": "silu"}
_DEFAULTS = _PLAIN.settings.defaults
_FIRST_HALF = rows_in(lambda _config, n_rows: np.arange(n_rows // 2))
_SECOND_HALF = rows_in(lambda _config, n_rows: np.arange(n_rows // 2, n_rows))


def _cuts(shared: str) -> dict[str, dict[str, Cut]]:
    """Return how fused matrices are cut; `shared` is what gguf's map calls the feed-forward of all tokens."""
    gates, ups = shapes.FUSED_EXPERTS[".experts.gate_up_proj"].values()
    experts = {"block_sparse_moe.experts.w1.weight": gates, "block_sparse_moe.experts.w3.weight": ups}
    return {
        "block_sparse_moe.input_linear.weight": experts,
        "block_sparse_moe.experts.gate_up_proj": experts,
        "block_sparse_moe.experts.down_proj": {"block_sparse_moe.output_linear.weight": whole_tensor},
        "shared_mlp.input_linear.weight": {
            f"{shared}.gate_proj.weight": _FIRST_HALF,
            f"{shared}.up_proj.weight": _SECOND_HALF,
        },
        "shared_mlp.output_linear.weight": {f"{shared}.down_proj.weight": whole_tensor},
        ".router.weight": {".router.layer.weight": whole_tensor},
    }


def _feed_forward(config: Config, kind: str = "") -> shapes.Dimensions:
    """Return the matrices of the feed-forward of all tokens, none where it has no width."""
    width = config.integer("shared_intermediate_size")
    return shapes.feed_forward(width, kind) if width else {}


def _attends(config: Config, i: int) -> bool:
    """Return whether layer `i` attends; without a list none does."""
    kinds = config.values.get("layer_types", config.values.get("layers_block_type"))
    if kinds is None:
        return False
    if not isinstance(kinds, list) or len(kinds) < config.integer("num_hidden_layers"):
        raise CheckpointError("layer_types in config.json is too short.", "Check layer_types.")
    return kinds[i] in ("attention", "full_attention")


def _mamba(config: Config) -> Config:
    return mamba_2_settings(config, n_inner=2 * config.integer("hidden_size"))


def _hybrid_layer(config: Config, i: int) -> shapes.Dimensions:
    mixer = shapes.ATTENTION if _attends(config, i) else mamba_2_mixer(_mamba(config))
    if not config.integer("num_local_experts"):
        return {**shapes.PRE_NORMS, **mixer, **_feed_forward(config)}
    return {**shapes.PRE_NORMS, **mixer, **shapes.EXPERT_FEED_FORWARD, **_feed_forward(config, "_shexp")}


_EXPERT_ROWS = (
    *rows.EXPERTS,
    rows.u32("expert_shared_feed_forward_length", lambda config: config.integer("shared_intermediate_size") or None),
)
_WIDTH = rows.u32("feed_forward_length", "shared_intermediate_size")

_EXPERTS = replace(
    _PLAIN,
    hf_classes=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    gguf_name="granitemoe",
    hyperparameters=(*_PLAIN.hyperparameters, *_EXPERT_ROWS),
    tensors=replace(
        _PLAIN.tensors,
        layer=lambda config, _i: {
            **shapes.NORMED_ATTENTION,
            **shapes.EXPERT_FEED_FORWARD,
            **_feed_forward(config, "_shexp"),
        },
    ),
    layout=replace(_PLAIN.layout, splits=_cuts("mlp.shared_mlp")),
    settings=replace(_PLAIN.settings, defaults={**_DEFAULTS, "shared_intermediate_size": 0}, assumed=_ASSUMED),
)
_ASSUMED_OF_ATTENTION = {**_ASSUMED, "position_embedding_type": "rope"}
_ATTENTION_WITH_EXPERTS = replace(
    _EXPERTS, hf_classes=(), settings=replace(_EXPERTS.settings, assumed=_ASSUMED_OF_ATTENTION)
)
_ATTENTION_ONLY = replace(
    _PLAIN,
    hf_classes=(),
    hyperparameters=(*rows.without(_PLAIN.hyperparameters, "feed_forward_length"), _WIDTH),
    tensors=replace(_PLAIN.tensors, layer=lambda config, _i: {**shapes.NORMED_ATTENTION, **_feed_forward(config)}),
    layout=replace(_PLAIN.layout, splits=_cuts("mlp")),
    settings=replace(_PLAIN.settings, assumed=_ASSUMED_OF_ATTENTION),
)
_HYBRID_ROWS = (
    *rows.without(_PLAIN.hyperparameters, "attention.head_count_kv", "feed_forward_length"),
    *mamba_2_rows(_mamba),
    rows.kv_heads_where(_attends, "num_attention_heads"),
    # to llama.cpp the switch of positions
    rows.boolean("rope.scaling.finetuned", lambda config: config.text("position_embedding_type") == "rope"),
)
_HYBRID = replace(
    _PLAIN,
    hf_classes=(),
    gguf_name="granitehybrid",
    hyperparameters=(*_HYBRID_ROWS, _WIDTH),
    tensors=replace(_PLAIN.tensors, layer=_hybrid_layer),
    layout=replace(
        MAMBA_2_LAYOUT, row_orders=_PLAIN.layout.row_orders, splits={**MAMBA_2_LAYOUT.splits, **_cuts("mlp")}
    ),
    settings=replace(
        _PLAIN.settings,
        defaults={**_DEFAULTS, "shared_intermediate_size": 1024, "mamba_n_groups": 1, "mamba_d_conv": 4},
        assumed={
            **_ASSUMED,
            "mamba_expand": 2,
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
            "time_step_limit": no_limit,
        },
    ),
)


def _variant(config: Config) -> Architecture:
    has_experts = config.integer("num_local_experts") > 0
    if all(_attends(config, i) for i in range(config.integer("num_hidden_layers"))):
        return _ATTENTION_WITH_EXPERTS if has_experts else _ATTENTION_ONLY
    return _HYBRID_WITH_EXPERTS if has_experts else _HYBRID


_HYBRID_WITH_EXPERTS = replace(
    _HYBRID,
    hf_classes=("GraniteMoeHybridForCausalLM",),
    hyperparameters=(*(_HYBRID_ROWS + _EXPERT_ROWS), rows.u32("feed_forward_length", "intermediate_size")),
    layout=replace(_HYBRID.layout, splits={**MAMBA_2_LAYOUT.splits, **_cuts("mlp.shared_mlp")}),
    variant=_variant,
)

_MINICPM = replace(
    _PLAIN,
    hf_classes=("MiniCPMForCausalLM",),
    gguf_name="minicpm",
    hyperparameters=(
        *(rows.DIVIDED_DECODER + rows.RMS_NORM),
        rows.f32("embedding_scale", "scale_emb"),
        rows.f32(
            "residual_scale",
            lambda config: config.number("scale_depth") / math.sqrt(config.integer("num_hidden_layers")),
        ),
        rows.f32(
            "logit_scale", lambda config: config.integer("hidden_size") / max(1, config.integer("dim_model_base"))
        ),
    ),
    settings=replace(
        _PLAIN.settings,
        defaults={"tie_word_embeddings": True, "scale_emb": 1.0, "scale_depth": 1.0, "dim_model_base": 1},
        assumed={**_ASSUMED, "num_experts": 0},
    ),
)

_OTHERS = (_HYBRID, _ATTENTION_ONLY, _ATTENTION_WITH_EXPERTS)


def _bases(config: Config) -> list[float]:
    """Return the base of the frequencies of each layer, 0 for one that does without positions."""
    n_layers, listed = config.integer("num_hidden_layers"), config.values.get("layer_rope_theta")
    if listed is None:
        return [rows.rope_base(config)] * n_layers
    if not isinstance(listed, list) or len(listed) < n_layers:
        raise CheckpointError("layer_rope_theta in config.json is too short.", "Check layer_rope_theta.")
    return [Config({"layer_rope_theta": base}).number("layer_rope_theta") for base in listed[:n_layers]]


def _one_base(config: Config) -> float:
    # of all layers that have positions
    bases = {base for base in _bases(config) if base} or {rows.rope_base(config)}
    if len(bases) > 1:
        raise CheckpointError(
            "config.json has several rope_theta, and llama.cpp supports one here.", "Choose another model."
        )
    return bases.pop()


def _windows(config: Config) -> Value:
    """Return which layers have a window: all but every fourth, the first of them."""
    kinds = config.values.get("layer_types")
    n_layers = config.integer("num_hidden_layers")
    if not isinstance(kinds, list):
        return [i % 4 != 0 for i in range(n_layers)]
    if len(kinds) < n_layers:
        raise CheckpointError("layer_types in config.json is too short.", "Check layer_types.")
    return [kind == "sliding_attention" for kind in kinds[:n_layers]]


_SINKS: shapes.Dimensions = {"attn_sinks.weight": ("n_heads",)}
_WINDOWED = replace(
    _PLAIN,
    hf_classes=("GraniteSWAForCausalLM",),
    gguf_name="granite_swa",
    hyperparameters=(
        *rows.without(_PLAIN.hyperparameters, "rope.freq_base"),
        rows.f32("rope.freq_base", _one_base),
        rows.u32("attention.sliding_window", "sliding_window"),
        rows.bool_list("attention.sliding_window_pattern", _windows),
        rows.bool_list(
            "attention.rope_pattern",
            lambda config: None if all(_bases(config)) else [base > 0 for base in _bases(config)],
        ),
    ),
    tensors=replace(_PLAIN.tensors, layer={**shapes.LLAMA_LAYER, **_SINKS}),
    names=replace(_PLAIN.names, map_of="granite", own={"model.layers.{bid}.self_attn.sinks": "blk.{bid}.attn_sinks"}),
    layout=replace(_PLAIN.layout, splits={".self_attn.sinks": {".self_attn.sinks.weight": whole_tensor}}),
    settings=replace(
        _PLAIN.settings,
        defaults={**_DEFAULTS, "tie_word_embeddings": True, "sliding_window": 128},
        assumed={**_ASSUMED, "no_rope_layers": lambda config: [int(base > 0) for base in _bases(config)]},
    ),
)


def _windowed_experts_layer(config: Config, _i: int) -> shapes.Dimensions:
    n_embd, width = config.integer("hidden_size"), config.integer("shared_intermediate_size")
    shared: shapes.Dimensions = {"ffn_up_shexp.weight": (n_embd, 2 * width), "ffn_down_shexp.weight": (width, n_embd)}
    return {**shapes.NORMED_ATTENTION, **_SINKS, **shapes.EXPERT_FEED_FORWARD, **(shared if width else {})}


_WINDOWED_WITH_EXPERTS = replace(
    _WINDOWED,
    hf_classes=("GraniteMoeSWAForCausalLM",),
    hyperparameters=(*_WINDOWED.hyperparameters, *_EXPERT_ROWS),
    tensors=replace(_WINDOWED.tensors, layer=_windowed_experts_layer),
    names=replace(
        _WINDOWED.names,
        map_of="granitemoe",
        own={
            **_WINDOWED.names.own,
            "model.layers.{bid}.shared_mlp.input_linear": "blk.{bid}.ffn_up_shexp",
            "model.layers.{bid}.shared_mlp.output_linear": "blk.{bid}.ffn_down_shexp",
        },
    ),
    layout=replace(
        _WINDOWED.layout,
        splits={
            **_WINDOWED.layout.splits,
            **{ending: parts for ending, parts in _cuts("").items() if not ending.startswith("shared_mlp")},
        },
    ),
    settings=replace(_WINDOWED.settings, defaults={**_DEFAULTS, "shared_intermediate_size": 0, "sliding_window": 128}),
)

GRANITE = (_EXPERTS, replace(_HYBRID_WITH_EXPERTS, variants=_OTHERS), _MINICPM, _WINDOWED, _WINDOWED_WITH_EXPERTS)
