"""Falcon: attention and feed-forward side by side, queries, keys and values in one matrix, group by group; the 40B has
a norm for each of both, the 7B one key for all queries. Falcon H1: attention and Mamba-2 side by side in every layer,
and multipliers that llama.cpp expects in the weights. Falcon Mamba: Mamba with norms, without weights, of what its
states take in.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Layout, RequiredTensors, Settings
from quantizer.architectures.families.recurrent import (
    MAMBA,
    MAMBA_2_LAYOUT,
    mamba_2_mixer,
    mamba_2_rows,
    mamba_2_settings,
    no_limit,
)
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import RowFactors, ungrouped


def _n_kv_heads(config: Config) -> int:
    """Return the heads of keys; only the newer form of the class goes by their number in config.json."""
    if config.flag("new_decoder_architecture"):
        return config.integer("num_kv_heads", "num_attention_heads")
    return config.integer("num_attention_heads") if config.flag("multi_query") is False else 1


def _width(config: Config) -> int:
    return config.optional_integer("ffn_hidden_size") or 4 * config.integer("hidden_size")


def _layer(config: Config, _i: int) -> shapes.Dimensions:
    n_embd, width = config.integer("hidden_size"), _width(config)
    has_two_norms = config.flag("new_decoder_architecture") and config.integer("num_ln_in_parallel_attn") == 2
    norms: shapes.Dimensions = {
        "attn_norm.weight": (n_embd,),
        **({"attn_norm_2.weight": (n_embd,)} if has_two_norms else {}),
    }
    return {
        **norms,
        **shapes.biases(norms),
        "attn_qkv.weight": (n_embd, n_embd + 2 * _n_kv_heads(config) * shapes.head_size(config)),
        "attn_output.weight": (n_embd, n_embd),
        "ffn_up.weight": (n_embd, width),
        "ffn_down.weight": (width, n_embd),
    }


def _kinds_apart(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
    return ungrouped(Config({**config.values, "num_key_value_heads": _n_kv_heads(config)}), n_rows)


_REPLACED = ("context_length", "feed_forward_length", "attention.head_count_kv")

_FALCON = Architecture(
    hf_classes=("FalconForCausalLM",),
    gguf_name="falcon",
    hyperparameters=(
        *rows.without(rows.DECODER, *_REPLACED),
        *rows.VOCABULARY,
        rows.u32("context_length", lambda c: c.optional_integer("max_position_embeddings") or 2048),
        rows.u32("feed_forward_length", _width),
        rows.u32("attention.head_count_kv", _n_kv_heads),
        rows.f32("attention.layer_norm_epsilon", "layer_norm_epsilon"),
    ),
    tensors=RequiredTensors(model=shapes.decoder_with_bias, layer=_layer),
    layout=Layout(row_orders={"ATTN_QKV": _kinds_apart}),
    settings=Settings(
        aliases={"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_head_kv": "num_kv_heads"},
        defaults={"tie_word_embeddings": True, "num_ln_in_parallel_attn": 2, "layer_norm_epsilon": 1e-5},
        assumed={
            "activation": "gelu",
            "alibi": False,
            "bias": False,
            "parallel_attn": lambda config: (
                True if not config.flag("new_decoder_architecture") else config.flag("parallel_attn")
            ),
        },
    ),
)


def _mamba(config: Config) -> Config:
    n_inner = config.optional_integer("mamba_d_ssm") or config.integer("mamba_expand") * config.integer("hidden_size")
    return mamba_2_settings(config, n_inner)


def _hybrid_layer(config: Config, _i: int) -> shapes.Dimensions:
    mixer = mamba_2_mixer(_mamba(config))
    if not config.flag("mamba_rms_norm"):
        mixer = shapes.without(mixer, "ssm_norm.weight")
    # llama.cpp's name for the norm of the feed-forward ends so
    norms: shapes.Dimensions = {"attn_norm.weight": ("n_embd",), "ffn_norm": ("n_embd",)}
    return {**norms, **shapes.ATTENTION, **mixer, **shapes.GATED_FEED_FORWARD}


def _product(*names: str) -> RowFactors:
    return lambda config, _n_rows: np.array([np.prod([config.number(name) for name in names])], np.float32)


def _numbers(config: Config, name: str, n: int) -> list[float]:
    values = config.values.get(name)
    if not isinstance(values, list) or len(values) != n:
        raise CheckpointError(f"{name} in config.json is not {n} numbers.", "Check config.json.")
    return [Config({name: value}).number(name) for value in values]


def _of_feed_forward(i: int) -> RowFactors:
    return lambda config, _n_rows: np.array([_numbers(config, "mlp_multipliers", 2)[i]], np.float32)


def _of_mamba(config: Config, _n_rows: int) -> npt.NDArray[np.float32]:
    """Return the multipliers of the parts of Mamba's projection: gate, input, two vectors of each group, time steps."""
    settings = _mamba(config)
    n_inner = settings.integer("num_heads") * settings.integer("head_dim")
    n_grouped = settings.integer("n_groups") * settings.integer("state_size")
    sizes = (n_inner, n_inner, n_grouped, n_grouped, settings.integer("num_heads"))
    factors = np.repeat(_numbers(config, "ssm_multipliers", len(sizes)), sizes)
    return np.asarray(factors * config.number("ssm_in_multiplier"), np.float32)


_MULTIPLIERS = (
    *("attention_in_multiplier", "attention_out_multiplier", "key_multiplier", "ssm_in_multiplier"),
    *("ssm_out_multiplier", "embedding_multiplier", "lm_head_multiplier"),
)

_HYBRID = Architecture(
    hf_classes=("FalconH1ForCausalLM",),
    gguf_name="falcon-h1",
    hyperparameters=(*rows.DECODER, *rows.RMS_NORM, *rows.VOCABULARY, *mamba_2_rows(_mamba)),
    tensors=RequiredTensors(layer=_hybrid_layer),
    layout=replace(
        MAMBA_2_LAYOUT,
        row_factors={
            "TOKEN_EMBD": _product("embedding_multiplier"),
            "OUTPUT": _product("lm_head_multiplier"),
            "ATTN_Q": _product("attention_in_multiplier"),
            "ATTN_K": _product("attention_in_multiplier", "key_multiplier"),
            "ATTN_V": _product("attention_in_multiplier"),
            "ATTN_OUT": _product("attention_out_multiplier"),
            "FFN_GATE": _of_feed_forward(0),
            "FFN_DOWN": _of_feed_forward(1),
            "SSM_IN": _of_mamba,
            "SSM_OUT": _product("ssm_out_multiplier"),
        },
    ),
    settings=Settings(
        defaults={
            **dict.fromkeys(_MULTIPLIERS, 1.0),
            "mlp_multipliers": [1.0] * 2,
            "ssm_multipliers": [1.0] * 5,
            "mamba_n_groups": 1,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
        assumed={
            "hidden_act": "silu",
            # tied, both would have the multiplier of one
            "tie_word_embeddings": lambda config: (
                config.number("lm_head_multiplier") == config.number("embedding_multiplier")
                and config.flag("tie_word_embeddings")
            ),
            **dict.fromkeys(("attention_bias", "mamba_proj_bias", "projectors_bias"), False),
            "mamba_conv_bias": True,
            # llama.cpp's norm comes after the gate
            "mamba_norm_before_gate": lambda config: (
                not config.flag("mamba_rms_norm") and config.flag("mamba_norm_before_gate")
            ),
            "time_step_limit": no_limit,
        },
    ),
)

_MAMBA = MAMBA[0]
FALCON = (
    _FALCON,
    _HYBRID,
    replace(
        _MAMBA,
        hf_classes=("FalconMambaForCausalLM",),
        hyperparameters=(*rows.without(_MAMBA.hyperparameters, "ssm.dt_b_c_rms"), rows.boolean("ssm.dt_b_c_rms", True)),
    ),
)
