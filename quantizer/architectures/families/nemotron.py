"""Nemotron: layer norms stored as their distance from one, half of each head rotated, a feed-forward without a gate.

Nemotron-H: each layer is Mamba-2, attention without positions, or a feed-forward; where that is experts, llama.cpp has
another name for the model. Experts may work in a narrower latent space. The layer that predicts one token further is
published as two, attention and experts, which llama.cpp has in one; names as in its conversion/nemotron.py.
"""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Layout, RequiredTensors, Settings, TensorNames, Value
from quantizer.architectures.families.recurrent import MAMBA_2_LAYOUT, mamba_2_mixer, mamba_2_rows, no_limit
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import plus_one, whole_tensor

_DENSE = Architecture(
    hf_classes=("NemotronForCausalLM",),
    gguf_name="nemotron",
    hyperparameters=(
        *(rows.DECODER + rows.VOCABULARY),
        rows.f32("attention.layer_norm_epsilon", "norm_eps"),
        rows.u32("rope.dimension_count", rows.partly_rotated(0.5)),
    ),
    tensors=RequiredTensors(
        model=shapes.decoder_with_bias,
        needs_output=True,
        layer={
            **shapes.PRE_NORMS,
            **shapes.biases(shapes.PRE_NORMS),
            **shapes.ATTENTION,
            **shapes.UNGATED_FEED_FORWARD,
        },
    ),
    layout=Layout(value_maps=dict.fromkeys(("ATTN_NORM", "FFN_NORM", "OUTPUT_NORM"), plus_one)),
    settings=Settings(assumed={"hidden_act": "relu2", "head_dim": shapes.even_head_size}),
)


_KINDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_KINDS |= {"linear_attention": "mamba", "full_attention": "attention"}


def _kinds(config: Config) -> list[str]:
    """Return what each layer is: mamba, attention, mlp or moe."""
    listed = config.values.get("hybrid_override_pattern") or config.values.get("layers_block_type")
    kinds = [_KINDS.get(kind, kind) for kind in listed] if isinstance(listed, str | list) else []
    odd = next((kind for kind in kinds if kind not in _KINDS.values()), None)
    if len(kinds) != config.integer("num_hidden_layers") or odd is not None:
        raise CheckpointError("layers_block_type in config.json is missing or invalid.", "Check layers_block_type.")
    if {"mlp", "moe"} <= set(kinds):
        raise CheckpointError(
            "Some layers have experts and others a feed-forward, which llama.cpp does not support for this"
            " architecture.",
            "Choose another model.",
        )
    return kinds


def _mamba(config: Config) -> Config:
    """Return the settings of Mamba-2 by its own names."""
    return Config(
        {
            "hidden_size": config.integer("hidden_size"),
            "num_heads": config.integer("mamba_num_heads"),
            "head_dim": config.integer("mamba_head_dim"),
            "n_groups": config.integer("n_groups"),
            "state_size": config.integer("ssm_state_size"),
            "conv_kernel": config.integer("conv_kernel"),
        }
    )


def _experts(config: Config) -> shapes.Dimensions:
    n_embd, n_shared = config.integer("hidden_size"), config.integer("moe_shared_expert_intermediate_size")
    latent = config.optional_integer("moe_latent_size")
    width, inner = config.integer("moe_intermediate_size"), latent or n_embd
    projections: shapes.Dimensions = {
        "ffn_latent_down.weight": (n_embd, inner),
        "ffn_latent_up.weight": (inner, n_embd),
    }
    return {
        **(projections if latent else {}),
        "ffn_gate_inp.weight": (n_embd, "n_expert"),
        "exp_probs_b.bias": ("n_expert",),
        "ffn_up_exps.weight": (inner, width, "n_expert"),
        "ffn_down_exps.weight": (width, inner, "n_expert"),
        "ffn_up_shexp.weight": (n_embd, n_shared),
        "ffn_down_shexp.weight": (n_shared, n_embd),
    }


def _layer(config: Config, i: int) -> shapes.Dimensions:
    norm: shapes.Dimensions = {"attn_norm.weight": ("n_embd",)}
    if i >= config.integer("num_hidden_layers"):
        norms: shapes.Dimensions = {**shapes.NORMS_OF_ATTENTION, "nextn.shared_head_norm.weight": ("n_embd",)}
        return {**norms, **shapes.ATTENTION, **_experts(config)}
    kind = _kinds(config)[i]
    if kind == "mamba":
        return {**norm, **mamba_2_mixer(_mamba(config))}
    if kind == "attention":
        return {**norm, **shapes.ATTENTION}
    if kind == "moe":
        return {**norm, **_experts(config)}
    return {**norm, **shapes.UNGATED_FEED_FORWARD}


def _widths(config: Config) -> Value:
    setting = {"mlp": "intermediate_size", "moe": "moe_intermediate_size"}
    kinds = [*_kinds(config), *["moe"] * _n_predicting(config)]
    return [config.integer(setting[kind]) if kind in setting else 0 for kind in kinds]


def _n_predicting(config: Config) -> int:
    return shapes.n_all_layers(config) - config.integer("num_hidden_layers")


def _kv_heads(config: Config) -> Value:
    kinds = [*_kinds(config), *["attention"] * _n_predicting(config)]
    n_heads = config.integer("num_key_value_heads", "num_attention_heads")
    return [n_heads if kind == "attention" else 0 for kind in kinds]


_HYBRID = Architecture(
    hf_classes=("NemotronHForCausalLM",),
    gguf_name="nemotron_h",
    hyperparameters=(
        *rows.without(rows.DECODER, "rope.", "feed_forward_length", "attention.head_count_kv"),
        *rows.VOCABULARY,
        *mamba_2_rows(_mamba),
        rows.u32_list("feed_forward_length", _widths),
        rows.u32_list("attention.head_count_kv", _kv_heads),
        *(rows.f32(f"attention.layer_norm_{kind}epsilon", "layer_norm_epsilon") for kind in ("", "rms_")),
    ),
    tensors=RequiredTensors(layer=_layer),
    names=TensorNames(
        # transformers' own names first; gguf's map has the experts under the names of other models
        renames={
            r"^model\.": "backbone.",
            r"^backbone\.layers\.(\d+)\.mixer\.experts\.": r"model.layers.\1.mlp.experts.",
        },
        unused=("mtp.",),
    ),
    layout=replace(
        MAMBA_2_LAYOUT,
        splits={
            **MAMBA_2_LAYOUT.splits,
            **shapes.CHOICE_CORRECTION,
            ".experts.up_proj": {".experts.up_proj.weight": whole_tensor},
            ".experts.down_proj": {".experts.down_proj.weight": whole_tensor},
        },
        stacks=shapes.NUMBERED_EXPERTS,
    ),
    settings=Settings(
        aliases={"attention_head_dim": "head_dim"},
        defaults={"head_dim": 128, "moe_latent_size": None},
        assumed={
            "mlp_hidden_act": "relu2",
            "mamba_hidden_act": "silu",
            "use_bias": False,
            "use_conv_bias": True,
            # the class has an output of its own whatever this says, and a checkpoint's is left out where it says so
            "tie_word_embeddings": False,
            "mamba_proj_bias": False,
            "sliding_window": None,
            "time_step_limit": no_limit,
        },
    ),
    variant=lambda config: _WITH_EXPERTS if "moe" in _kinds(config) else None,
)
_MIXER = {
    **{f"{what}_proj": f"attn_{what}" for what in "qkv"},
    "o_proj": "attn_output",
    "gate": "ffn_gate_inp",
    "gate.e_score_correction": "exp_probs_b",
    "shared_experts.up_proj": "ffn_up_shexp",
    "shared_experts.down_proj": "ffn_down_shexp",
    "fc1_latent_proj": "ffn_latent_down",
    "fc2_latent_proj": "ffn_latent_up",
}
_WITH_EXPERTS: Architecture = replace(
    _HYBRID,
    gguf_name="nemotron_h_moe",
    names=replace(
        _HYBRID.names,
        renames={
            **_HYBRID.names.renames,
            r"^mtp\.layers\.1\.norm\.": "mtp.layers.0.post_attention_layernorm.",
            r"^mtp\.layers\.1\.final_layernorm\.": "mtp.layers.0.shared_head.norm.",
            r"^mtp\.layers\.[01]\.mixer\.experts\.": "mtp.layers.0.mlp.experts.",
            r"^mtp\.layers\.1\.": "mtp.layers.0.",
        },
        own={
            "model.layers.{bid}.norm": "blk.{bid}.attn_norm",
            "model.layers.{bid}.post_attention_layernorm": "blk.{bid}.post_attention_norm",
            **{f"model.layers.{{bid}}.mixer.{name}": f"blk.{{bid}}.{new}" for name, new in _MIXER.items()},
        },
        leaves_later_layers=True,
        n_prediction_layers=1,
        unused=(),
    ),
    hyperparameters=(
        *(_HYBRID.hyperparameters + rows.EXPERTS),
        rows.u32("expert_feed_forward_length", "moe_intermediate_size"),
        rows.u32("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"),
        rows.u32("expert_shared_count", "n_shared_experts"),
        rows.u32("expert_group_count", "n_group"),
        rows.u32("expert_group_used_count", "topk_group"),
        rows.flag("expert_weights_norm", "norm_topk_prob"),
        rows.f32("expert_weights_scale", "routed_scaling_factor"),
        rows.u32("moe_latent_size", lambda config: config.optional_integer("moe_latent_size")),
        *rows.PREDICTION_ROW,
    ),
)

NEMOTRON = (_DENSE, replace(_HYBRID, variants=(_WITH_EXPERTS,)))
