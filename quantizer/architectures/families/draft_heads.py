"""Draft heads: layers of their own that draft for a model, whose vocabulary they have and whose states they read.

EAGLE-3: one layer of Llama's, whose attention reads a token and the fused states of three layers side by side; it may
draft from a smaller vocabulary, `d2t` being the way from that to the model's. DFlash: some layers of Qwen 3's, which
draft a block of tokens in one pass. DFlash 2: DFlash with convolutions over the block, and a selector that scores pairs
of neighbouring candidates. DSpark: DFlash with a Markov head, which knows which token follows which.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Layout, RequiredTensors, Settings, TensorNames, Value
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import unpermute_keys, unpermute_queries, whole_tensor

_MASKS = ("t2d", ".rotary_emb.inv_freq")  # t2d tells which tokens are drafted, which d2t does too


def _layers(config: Config, *names: str) -> list[int]:
    """Return the layers of the model that a head reads, none where no setting has one of these names."""
    found: object = next((config.values[name] for name in names if config.values.get(name)), [])
    if not isinstance(found, list) or not all(type(layer) is int and layer >= 0 for layer in found):
        raise CheckpointError(f"config.json has {names[0]} = {str(found)[:64]}.", "It should be a list of layers.")
    return found


def _n_drafted(config: Config) -> int:
    return config.optional_integer("draft_vocab_size") or config.integer("vocab_size")


def _is_small(config: Config) -> bool:
    return _n_drafted(config) != config.integer("vocab_size")


def _drafted_tokens(steps: npt.NDArray[np.int64], config: Config) -> npt.NDArray[np.int64]:
    """Return the model's numbers of the tokens that a head drafts, stored as how far each is from its own number."""
    tokens = steps + np.arange(len(steps))
    if tokens.min() < 0 or tokens.max() >= config.integer("vocab_size") or len(np.unique(tokens)) != len(tokens):
        raise CheckpointError(
            "The tensor d2t maps outside the vocabulary, or twice to one token.", "Download the head again."
        )
    return tokens


def _vocabulary_tensors(config: Config) -> shapes.Dimensions:
    """Return what a head may have of its own, and shares with its model otherwise."""
    n_embd, n_drafted = config.integer("hidden_size"), _n_drafted(config)
    return {
        "token_embd.weight": (n_embd, config.integer("vocab_size")),
        "output.weight": (n_embd, n_drafted),
        "d2t": (n_drafted,),
    }


def _needed_vocabulary_tensors(config: Config) -> shapes.Dimensions:
    return shapes.without(_vocabulary_tensors(config), "token_embd.weight") if _is_small(config) else {}


def _eagle3_layers(config: Config) -> list[int]:
    """Return the three layers that are read: a low one, a middle one and a high one where the config names none."""
    name = "eagle_aux_hidden_state_layer_ids"
    if named := _layers(config, name) or _layers(config.section("eagle_config"), name):
        return named
    n_layers = config.section("target").integer("num_hidden_layers")
    return [2, n_layers // 2, n_layers - 3]


def _n_read(config: Config) -> int:
    return config.optional_integer("target_hidden_size") or config.section("target").integer("hidden_size")


def _eagle3_tensors(config: Config) -> shapes.Dimensions:
    n_fused = len(_eagle3_layers(config)) * _n_read(config)
    norm: shapes.Dimensions = {"enc.output_norm.weight": (n_fused,)} if config.flag("norm_before_fc") else {}
    return {
        "fc.weight": (n_fused, "n_embd"),
        "output_norm.weight": ("n_embd",),
        **norm,
        **_needed_vocabulary_tensors(config),
    }


_EAGLE3 = Architecture(
    hf_classes=("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel"),
    gguf_name="eagle3",
    hyperparameters=(
        *(rows.DIVIDED_DECODER + rows.RMS_NORM + rows.VOCABULARY + rows.ROTATED),
        rows.i32_list("target_layers", _eagle3_layers),
        rows.u32("target_hidden_size", _n_read),
        rows.flag("norm_before_residual", "norm_before_residual"),
        rows.flag("norm_before_fc", "norm_before_fc"),
    ),
    tensors=RequiredTensors(
        layer={
            **shapes.LLAMA_LAYER,
            "attn_norm_2.weight": ("n_embd",),
            "attn_q.weight": ("2 n_embd", "n_query"),
            "attn_k.weight": ("2 n_embd", "n_kv"),
            "attn_v.weight": ("2 n_embd", "n_kv"),
        },
        model=_eagle3_tensors,
        optional=_vocabulary_tensors,
        generate=rows.frequency_divisors,
    ),
    names=TensorNames(
        map_of="llama",
        own={
            "fc": "fc",
            "input_norm": "enc.output_norm",
            "layers.{bid}.hidden_norm": "blk.{bid}.attn_norm_2",
            "d2t": "d2t",
        },
        ignored=_MASKS,
        renames={r"^(model\.)?(midlayer\.|layers\.0\.)": "layers.0."},
    ),
    layout=Layout(
        row_orders={"ATTN_Q": unpermute_queries, "ATTN_K": unpermute_keys}, number_maps={"d2t": _drafted_tokens}
    ),
    settings=Settings(
        sections=("transformer_layer_config",),
        assumed={"num_hidden_layers": 1, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    ),
    is_draft_head=True,
)


def eagle3_variant(config: Config) -> Architecture | None:
    """Return EAGLE-3's entry for a head that calls itself a model of one layer, as the first ones do."""
    is_head = "draft_vocab_size" in config.values and config.integer("num_hidden_layers") == 1
    return _EAGLE3 if is_head else None


def _dflash_layers(config: Config) -> list[int]:
    """Return the layers whose inputs are read; most configs name those whose outputs that are."""
    layers = _layers(config, "aux_hidden_state_layer_ids") or [
        layer + 1 for layer in _layers(config, "target_layer_ids")
    ]
    if not layers:
        raise CheckpointError(
            "config.json doesn't list the target layers of this draft head.", "Download the whole checkpoint."
        )
    return layers


def _windows(config: Config) -> list[bool] | None:
    """Return which layers have a window, None where none has: llama.cpp ends the process for one that no layer has."""
    n_layers, kinds = config.integer("num_hidden_layers"), config.values.get("layer_types")
    windows: list[bool] = []
    if config.flag("use_swa"):
        windows = [True] * n_layers
    elif config.flag("use_sliding_window") and isinstance(kinds, list):
        windows = [kind == "sliding_attention" for kind in kinds]
    return windows if any(windows) and _n_windowed(config) else None


def _n_windowed(config: Config) -> int | None:
    return config.optional_integer("swa_window_size", "sliding_window")


def _n_rotated(config: Config) -> Value:
    share = rows.rope_of(config).optional_number("partial_rotary_factor")
    return None if share is None else int(shapes.head_size(config) * share)


def _sections(config: Config) -> Value:
    """Return the positions of a head whose model sees: those of text only."""
    return [shapes.head_size(config) // 2, 0, 0, 0] if config.section("target").flag("has_rotation_sections") else None


def _dflash_tensors(config: Config) -> shapes.Dimensions:
    return {
        "fc.weight": (len(_dflash_layers(config)) * config.integer("hidden_size"), "n_embd"),
        "enc.output_norm.weight": ("n_embd",),
        "output_norm.weight": ("n_embd",),
    }


_PLAIN_DFLASH = Architecture(
    hf_classes=("DFlashDraftModel",),
    gguf_name="dflash",
    hyperparameters=(
        *(rows.DECODER + rows.RMS_NORM),
        rows.u32("rope.dimension_count", _n_rotated),
        rows.i32_list("rope.dimension_sections", _sections),
        rows.f32("attention.value_scale", rows.number("attention_value_scale")),
        rows.u32("attention.sliding_window", lambda config: _n_windowed(config) if _windows(config) else None),
        rows.bool_list("attention.sliding_window_pattern", _windows),
        rows.boolean(
            "attention.causal",
            lambda config: config.flag("causal") if config.flag("is_causal") is None else config.flag("is_causal"),
        ),
        rows.f32("embedding_scale", rows.number("input_embedding_scale")),
        rows.f32("logit_scale", rows.number("output_multiplier")),
        rows.f32("final_logit_softcapping", rows.number("final_logit_softcapping")),
        rows.i32_list("target_layers", _dflash_layers),
        rows.u32("block_size", lambda config: config.optional_integer("block_size") or 16),
    ),
    tensors=RequiredTensors(
        layer={**shapes.LLAMA_LAYER, **shapes.HEAD_NORMS},
        model=_dflash_tensors,
        optional=_vocabulary_tensors,
    ),
    names=TensorNames(
        map_of="qwen3",
        own={"fc": "fc", "hidden_norm": "enc.output_norm", "layers.{bid}.self_attn.sinks": "blk.{bid}.attn_sinks"},
        ignored=_MASKS,
        prefix="model.",
    ),
    layout=Layout(splits={".self_attn.sinks": {".self_attn.sinks.weight": whole_tensor}}),
    settings=Settings(
        sections=("dflash_config",),
        assumed={
            "hidden_act": "silu",
            "attention_bias": False,
            "rope_is_neox_style": True,
            # heads with it have their mask token's embedding in a pickle
            "has_embed_tokens": True,
        },
    ),
    is_draft_head=True,
)


def _n_candidates(config: Config) -> int:
    n_embd, top_k = config.integer("hidden_size"), config.integer("selector_top_k")
    if not 0 < top_k * (top_k + 1) <= n_embd:
        raise CheckpointError(
            f"config.json has selector_top_k = {top_k}, but llama.cpp returns the candidates of a place and the scores "
            f"of their pairs in a row of hidden_size = {n_embd} numbers.",
            "Choose another draft head.",
        )
    return top_k


def _dflash2_layer(config: Config, _layer: int) -> shapes.Dimensions:
    """Return the tensors of a layer, whose attention and feed-forward have a convolution before and one behind them. It
    has a number for each element, and adds one for each group that follows from the input."""
    n_embd, n_taps, group = (config.integer(name) for name in ("hidden_size", "conv_kernel_size", "conv_group_size"))
    if not group or n_embd % group:
        raise CheckpointError(
            f"conv_group_size = {group} in config.json does not divide {n_embd}.", "Check config.json."
        )
    convolution = {"conv_base": (n_embd, n_taps, 2), "conv_proj.weight": (n_embd, 2 * n_taps * (n_embd // group))}
    around = {f"{part}_{name}": shape for part in ("attn", "ffn") for name, shape in convolution.items()}
    return {**shapes.LLAMA_LAYER, **shapes.HEAD_NORMS, **around}


def _dflash2_tensors(config: Config) -> shapes.Dimensions:
    rank = config.integer("selector_rank")
    return {
        **_dflash_tensors(config),
        "selector_predecessor.weight": (rank, "n_vocab"),
        "selector_successor.weight": (rank, "n_vocab"),
        "selector_hidden.weight": ("n_embd", rank),
    }


_DFLASH2 = replace(
    _PLAIN_DFLASH,
    hf_classes=("DFlash2DraftModel",),
    hyperparameters=(
        *_PLAIN_DFLASH.hyperparameters,
        rows.u32("conv_kernel_size", rows.integer("conv_kernel_size")),
        rows.u32("conv_group_size", rows.integer("conv_group_size")),
        rows.u32("selector_rank", rows.integer("selector_rank")),
        rows.u32("selector_top_k", _n_candidates),
    ),
    tensors=replace(_PLAIN_DFLASH.tensors, layer=_dflash2_layer, model=_dflash2_tensors),
    names=replace(
        _PLAIN_DFLASH.names,
        own={
            **_PLAIN_DFLASH.names.own,
            "layers.{bid}.attention_conv.base_kernel": "blk.{bid}.attn_conv_base",
            "layers.{bid}.attention_conv.kernel_projection": "blk.{bid}.attn_conv_proj",
            "layers.{bid}.mlp_conv.base_kernel": "blk.{bid}.ffn_conv_base",
            "layers.{bid}.mlp_conv.kernel_projection": "blk.{bid}.ffn_conv_proj",
            "candidate_selector.predecessor_codebook": "selector_predecessor",
            "candidate_selector.successor_codebook": "selector_successor",
            "candidate_selector.hidden_projection": "selector_hidden",
        },
        renames={r"_codebook$": "_codebook.weight"},
    ),
)
_DFLASH = replace(
    _PLAIN_DFLASH,
    variant=lambda config: _DFLASH2 if config.optional_integer("conv_kernel_size") else None,
    variants=(_DFLASH2,),
)


def _samples_from_anchor(config: Config) -> Value:
    is_of_dflash = not {"transformer_layer_config", "aux_hidden_state_layer_ids"} & config.values.keys()
    stated = config.flag("sample_from_anchor")
    return is_of_dflash if stated is None else stated


def _dspark_tensors(config: Config) -> shapes.Dimensions:
    rank = config.optional_integer("markov_rank")
    tensors = {**_dflash_tensors(config), **_needed_vocabulary_tensors(config)}
    if rank:
        tensors |= {"markov_w1.weight": (rank, "n_vocab"), "markov_w2.weight": (rank, _n_drafted(config))}
    return tensors


_SMALL_DSPARK = replace(
    _PLAIN_DFLASH,
    hf_classes=("Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator", "Lfm2DSparkDraftModel", "LingDSparkModel"),
    hyperparameters=(*_PLAIN_DFLASH.hyperparameters, rows.boolean("sample_from_anchor", _samples_from_anchor)),
    tensors=replace(_PLAIN_DFLASH.tensors, model=_dspark_tensors),
    names=replace(
        _PLAIN_DFLASH.names,
        own={
            **_PLAIN_DFLASH.names.own,
            "markov_head.markov_w1": "markov_w1",
            "markov_head.markov_w2": "markov_w2",
            "confidence_head.proj": "conf_proj",
            "d2t": "d2t",
        },
    ),
    layout=replace(_PLAIN_DFLASH.layout, number_maps={"d2t": _drafted_tokens}),
    settings=replace(
        _PLAIN_DFLASH.settings,
        sections=("transformer_layer_config", "dflash_config"),
        assumed={**_PLAIN_DFLASH.settings.assumed, "markov_head_type": "vanilla", "conv_kernel_size": None},
    ),
    metadata_of_tensors=replace(
        _PLAIN_DFLASH.metadata_of_tensors, flags={"dflash.has_confidence_head": "confidence_head.proj"}
    ),
)
# with the model's whole vocabulary the output is the model's own
_DSPARK = replace(
    _SMALL_DSPARK,
    names=replace(_SMALL_DSPARK.names, unused=("lm_head.",)),
    variant=lambda config: _SMALL_DSPARK if _is_small(config) else None,
)

DRAFT_HEADS = (_EAGLE3, _DFLASH, _DFLASH2, _DSPARK)
