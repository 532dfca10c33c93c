"""Models with a state or a convolution instead of attention. Mamba and Mamba-2; Jamba, with attention in every few
layers and experts in others, and without positions.

LFM 2: short convolutions in most layers, attention with normalised heads in the others; with experts after the first
dense layers. llama.cpp calls its last norm one of the embeddings. The width of the feed-forward is two thirds of the
configured one, rounded up, unless the config has it otherwise; that of experts is as configured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Hyperparameter, Layout, RequiredTensors, Settings, Value
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import negative_exponential, whole_tensor

_UNBOUNDED_CONTEXT = 1 << 20  # a state has no length; llama.cpp's own files have this value

_ROWS = (
    rows.u32("block_count", "num_hidden_layers"),
    rows.u32("context_length", _UNBOUNDED_CONTEXT),
    rows.u32("embedding_length", "hidden_size"),
    rows.u32("feed_forward_length", 0),
    rows.u32("attention.head_count", 0),
    rows.u32("ssm.conv_kernel", "conv_kernel"),
    rows.u32("ssm.state_size", "state_size"),
    rows.f32("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
)
_LAYER: shapes.Dimensions = {
    "attn_norm.weight": ("n_embd",),
    "ssm_in.weight": ("n_embd", "2 n_ff"),
    "ssm_conv1d.weight": ("n_conv", "n_ff"),
    "ssm_conv1d.bias": ("n_ff",),
    "ssm_x.weight": ("n_ff", "n_step_and_states"),
    "ssm_dt.weight": ("n_step", "n_ff"),
    "ssm_dt.bias": ("n_ff",),
    "ssm_a": ("n_state", "n_ff"),
    "ssm_d": ("n_ff",),
    "ssm_out.weight": ("n_ff", "n_embd"),
}
_MIXER_2: shapes.Dimensions = {
    "ssm_in.weight": ("n_embd", "n_ssm_projection"),
    "ssm_conv1d.weight": ("n_conv", "n_ssm_channels"),
    "ssm_conv1d.bias": ("n_ssm_channels",),
    "ssm_dt.bias": ("n_ssm_heads",),
    "ssm_a": (1, "n_ssm_heads"),
    "ssm_d": (1, "n_ssm_heads"),
    "ssm_norm.weight": ("n_ssm_group", "n_ssm_groups"),
    "ssm_out.weight": ("n_ssm_inner", "n_embd"),
}


def no_limit(config: Config) -> object:
    """Return the bounds of time steps as they are written, if they bound nothing."""
    bounds = config.values.get("time_step_limit")
    is_open = isinstance(bounds, list) and bounds in ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])
    return bounds if is_open else [0.0, math.inf]


def mamba_2_rows(settings: Callable[[Config], Config]) -> tuple[Hyperparameter, ...]:
    """Return the rows of Mamba-2's sizes; `settings` gives a hybrid's config Mamba-2's own names."""
    sizes: dict[str, Callable[[Config], Value]] = {
        "conv_kernel": rows.integer("conv_kernel"),
        "state_size": rows.integer("state_size"),
        "inner_size": shapes.DIMENSIONS["n_ssm_inner"],
        "time_step_rank": rows.integer("num_heads"),
        "group_count": rows.integer("n_groups"),
    }
    return tuple(
        rows.u32(f"ssm.{name}", lambda config, read=read: read(settings(config)))  # type: ignore[misc]
        for name, read in sizes.items()
    )


def mamba_2_settings(config: Config, n_inner: int) -> Config:
    """Return the settings of a hybrid's Mamba-2, `n_inner` numbers wide, by Mamba-2's own names."""
    n_heads = config.integer("mamba_n_heads")
    return Config(
        {
            "hidden_size": config.integer("hidden_size"),
            "num_heads": n_heads,
            "head_dim": n_inner // max(1, n_heads),
            "n_groups": config.integer("mamba_n_groups"),
            "state_size": config.integer("mamba_d_state"),
            "conv_kernel": config.integer("mamba_d_conv"),
        }
    )


def mamba_2_mixer(settings: Config) -> shapes.Dimensions:
    return shapes.resolve_shapes(_MIXER_2, settings)


MAMBA_2_LAYOUT = Layout(
    splits={".dt_bias": {".dt_proj.bias": whole_tensor}},
    reshaped=("SSM_CONV1D", "SSM_A", "SSM_D", "SSM_NORM"),
    value_maps={"SSM_A": negative_exponential},
)

MAMBA = (
    Architecture(
        hf_classes=("MambaForCausalLM",),
        gguf_name="mamba",
        hyperparameters=(
            *_ROWS,
            rows.u32("ssm.inner_size", "intermediate_size"),
            rows.u32("ssm.time_step_rank", "time_step_rank"),
            rows.boolean("ssm.dt_b_c_rms", False),
        ),
        tensors=RequiredTensors(layer=_LAYER),
        layout=Layout(value_maps={"SSM_A": negative_exponential}, reshaped=("SSM_CONV1D",)),
        settings=Settings(
            defaults={"tie_word_embeddings": True},
            assumed={
                "hidden_act": "silu",
                "use_bias": False,
                "intermediate_size": lambda config: 2 * config.integer("hidden_size"),
            },
        ),
    ),
    Architecture(
        hf_classes=("Mamba2ForCausalLM",),
        gguf_name="mamba2",
        hyperparameters=(*rows.without(_ROWS, "ssm."), *mamba_2_rows(lambda config: config)),
        tensors=RequiredTensors(layer={"attn_norm.weight": ("n_embd",), **_MIXER_2}),
        settings=Settings(
            assumed={"hidden_act": "silu", "use_bias": False, "use_conv_bias": True, "time_step_limit": no_limit}
        ),
        layout=MAMBA_2_LAYOUT,
    ),
)


_MAMBA: shapes.Dimensions = {
    "ssm_in.weight": ("n_embd", "2 n_mamba"),
    "ssm_conv1d.weight": ("n_conv", "n_mamba"),
    "ssm_conv1d.bias": ("n_mamba",),
    "ssm_x.weight": ("n_mamba", "n_step_and_states"),
    "ssm_dt.weight": ("n_step", "n_mamba"),
    "ssm_dt.bias": ("n_mamba",),
    "ssm_dt_norm.weight": ("n_step",),
    "ssm_b_norm.weight": ("n_state",),
    "ssm_c_norm.weight": ("n_state",),
    "ssm_a": ("n_state", "n_mamba"),
    "ssm_d": ("n_mamba",),
    "ssm_out.weight": ("n_mamba", "n_embd"),
}


def _is_every(config: Config, kind: str, i: int) -> bool:
    period, offset = config.integer(f"{kind}_layer_period"), config.integer(f"{kind}_layer_offset")
    return i % max(1, period) == offset


def _layer(config: Config, i: int) -> shapes.Dimensions:
    has_experts = _is_every(config, "expert", i) and config.integer("num_experts") > 1
    return {
        **shapes.PRE_NORMS,
        **(shapes.ATTENTION if _is_every(config, "attn", i) else _MAMBA),
        **(shapes.EXPERT_FEED_FORWARD if has_experts else shapes.GATED_FEED_FORWARD),
    }


JAMBA = Architecture(
    hf_classes=("JambaForCausalLM",),
    gguf_name="jamba",
    hyperparameters=(
        *(rows.SIZES + rows.RMS_NORM + rows.EXPERTS),
        rows.u32("attention.head_count", "num_attention_heads"),
        rows.kv_heads_where(lambda config, i: _is_every(config, "attn", i)),
        rows.u32("ssm.conv_kernel", "conv_kernel"),
        rows.u32("ssm.state_size", "state_size"),
        rows.u32("ssm.inner_size", shapes.DIMENSIONS["n_mamba"]),
        rows.u32("ssm.time_step_rank", "time_step_rank"),
    ),
    tensors=RequiredTensors(layer=_layer),
    layout=Layout(
        value_maps={"SSM_A": negative_exponential},
        reshaped=("SSM_CONV1D",),
        # gguf's map has the experts under the names of other models
        stacks=(shapes.Stack(".feed_forward.experts.", ".mlp.experts.", shapes.DIMENSIONS["n_expert"]),),
    ),
    settings=Settings(
        aliases={"mamba_d_conv": "conv_kernel", "mamba_d_state": "state_size", "mamba_dt_rank": "time_step_rank"},
        assumed={
            "hidden_act": "silu",
            "mamba_expand": 2,
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
            "sliding_window": None,
        },
    ),
)


_CONVOLUTION = {"conv", "short_conv"}


def _attends(config: Config, i: int) -> bool:
    """Return whether layer `i` attends; without any list all do."""
    kinds = config.values.get("layer_types")
    if kinds is None:
        chosen = config.values.get("full_attn_idxs")
        return not isinstance(chosen, list) or i in chosen
    if not isinstance(kinds, list) or len(kinds) < config.integer("num_hidden_layers"):
        raise CheckpointError("layer_types in config.json is too short.", "Check layer_types.")
    return kinds[i] not in _CONVOLUTION


def _lfm_width(config: Config) -> int:
    # as the HF class computes it
    width = config.integer("block_ff_dim", "intermediate_size")
    if config.flag("block_auto_adjust_ff_dim") is False:
        return width
    multiple = config.integer("block_multiple_of")
    width = int(config.number("block_ffn_dim_multiplier") * int(2 * width / 3))
    return -(-width // max(1, multiple)) * multiple


def _lfm_mixer(config: Config, i: int) -> shapes.Dimensions:
    if _attends(config, i):
        return {**shapes.NORMED_ATTENTION, **shapes.HEAD_NORMS}
    n_embd = config.integer("hidden_size")
    return {
        **shapes.PRE_NORMS,
        "shortconv.conv.weight": (config.integer("conv_L_cache"), n_embd),
        "shortconv.in_proj.weight": (n_embd, 3 * n_embd),
        "shortconv.out_proj.weight": (n_embd, n_embd),
    }


_LFM_ROWS = (
    *rows.without(rows.DECODER, "feed_forward_length", "attention.head_count_kv"),
    *rows.VOCABULARY,
    rows.kv_heads_where(_attends),
    rows.f32("attention.layer_norm_rms_epsilon", "norm_eps"),
    rows.u32("shortconv.l_cache", "conv_L_cache"),
)
_LFM_2 = Architecture(
    hf_classes=("Lfm2ForCausalLM", "LFM2ForCausalLM"),
    gguf_name="lfm2",
    hyperparameters=(*_LFM_ROWS, rows.u32("feed_forward_length", _lfm_width)),
    tensors=RequiredTensors(
        model=lambda config: {
            name.replace("output_norm", "token_embd_norm"): extents for name, extents in shapes.decoder(config).items()
        },
        layer=lambda config, i: {**_lfm_mixer(config, i), **shapes.feed_forward(_lfm_width(config))},
    ),
    layout=Layout(reshaped=("SHORTCONV_CONV",)),
    settings=Settings(
        aliases={"tie_embedding": "tie_word_embeddings"},
        defaults={
            "tie_word_embeddings": True,
            "rope_theta": 1e6,
            "norm_eps": 1e-5,
            "conv_L_cache": 3,
            "block_multiple_of": 256,
            "block_ffn_dim_multiplier": 1.0,
        },
        assumed={"conv_bias": False, "head_dim": shapes.even_head_size},
    ),
)

LFM = (
    _LFM_2,
    replace(
        _LFM_2,
        hf_classes=("Lfm2MoeForCausalLM",),
        gguf_name="lfm2moe",
        names=replace(_LFM_2.names, own={"lm_head": "output"}),
        hyperparameters=(
            *(_LFM_ROWS + rows.EXPERTS),
            rows.u32("feed_forward_length", "intermediate_size"),
            rows.u32("leading_dense_block_count", "num_dense_layers"),
            rows.u32("expert_feed_forward_length", "moe_intermediate_size"),
            rows.BY_SIGMOID,
        ),
        tensors=replace(
            _LFM_2.tensors,
            layer=lambda config, i: {
                **_lfm_mixer(config, i),
                **(shapes.GATED_FEED_FORWARD if i < config.integer("num_dense_layers") else shapes.BIASED_EXPERTS),
            },
        ),
        layout=replace(
            _LFM_2.layout,
            splits={".expert_bias": {".expert_bias.bias": whole_tensor}, **shapes.FUSED_EXPERTS},
            # gguf's map has the experts under the names of Mixtral's
            stacks=(
                shapes.Stack(".feed_forward.experts.", ".block_sparse_moe.experts.", shapes.DIMENSIONS["n_expert"]),
            ),
        ),
        settings=_LFM_2.settings.plus(
            defaults={"num_dense_layers": 2},
            assumed={"use_expert_bias": True, "norm_topk_prob": True, "routed_scaling_factor": 1.0},
        ),
    ),
)
