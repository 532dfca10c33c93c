"""Qwen 2 and 3, dense and with experts; Qwen 3-Next and 3.5; and the language models of Qwen 2-VL to 3-Omni.

In Next and 3.5 three of four layers have a state instead of attention, in heads that share keys. Next stores its
projections head by head of keys, 3.5 by what they are. Both have a layer of attention that predicts one token further.

The VL and Omni models divide their rotations among time, height and width; for text all three are the token's position.
What the vision model adds to the first layers of Qwen 3-VL comes from its own file; this one states to how many. Its
experts are stored with inputs as rows, by transformers 5 on request not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Layout, RequiredTensors, Settings, TensorNames, Value
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert import derived_tensors as derive
from quantizer.convert.source_model import FileTensor, RearrangedTensor, SourceTensor

_EXPERT_ROWS = (*rows.EXPERTS, rows.u32("expert_feed_forward_length", "moe_intermediate_size"))
_SHARED_EXPERT_ROW = rows.u32("expert_shared_feed_forward_length", "shared_expert_intermediate_size")
_ASSUMED = {"hidden_act": "silu"}
_WINDOWLESS = {"use_sliding_window": False}
# in llama.cpp every layer has experts
_ASSUMED_OF_EXPERTS = {**_ASSUMED, "decoder_sparse_step": 1, "mlp_only_layers": []}
_SHARED_EXPERT: shapes.Dimensions = {
    "ffn_gate_inp_shexp.weight": ("n_embd", 1),
    **shapes.feed_forward("n_ff_shared", "_shexp"),
}

_DENSE = (
    Architecture(
        hf_classes=("Qwen2ForCausalLM",),
        gguf_name="qwen2",
        hyperparameters=rows.DECODER + rows.RMS_NORM,
        tensors=RequiredTensors(layer={**shapes.LLAMA_LAYER, **shapes.QKV_BIASES}),
        settings=Settings(defaults=_WINDOWLESS, assumed=_ASSUMED),
    ),
    Architecture(
        hf_classes=("Qwen3ForCausalLM",),
        gguf_name="qwen3",
        hyperparameters=rows.DECODER + rows.RMS_NORM,
        tensors=RequiredTensors(layer={**shapes.LLAMA_LAYER, **shapes.HEAD_NORMS}),
        settings=Settings(defaults=_WINDOWLESS, assumed=_ASSUMED),
    ),
)


_TEXT = (
    *_DENSE,
    *(
        replace(entry, hf_classes=(name,), tensors=replace(entry.tensors, model=shapes.decoder_body))
        for entry, name in zip(_DENSE, ("Qwen2Model", "Qwen3Model"), strict=True)
    ),
    Architecture(
        hf_classes=("Qwen2MoeForCausalLM",),
        gguf_name="qwen2moe",
        hyperparameters=(*rows.DECODER, *rows.RMS_NORM, *_EXPERT_ROWS, _SHARED_EXPERT_ROW),
        tensors=RequiredTensors(
            layer=lambda config, _i: {
                **shapes.NORMED_ATTENTION,
                **({} if config.flag("qkv_bias") is False else shapes.QKV_BIASES),
                **shapes.EXPERT_FEED_FORWARD,
                **_SHARED_EXPERT,
            },
            needs_output=True,
        ),
        layout=Layout(stacks=shapes.NUMBERED_EXPERTS, splits=shapes.FUSED_EXPERTS),
        settings=Settings(defaults=_WINDOWLESS, assumed={**_ASSUMED_OF_EXPERTS, "norm_topk_prob": False}),
    ),
    Architecture(
        hf_classes=("Qwen3MoeForCausalLM",),
        gguf_name="qwen3moe",
        hyperparameters=rows.DECODER + rows.RMS_NORM + _EXPERT_ROWS,
        tensors=RequiredTensors(layer={**shapes.NORMED_ATTENTION, **shapes.HEAD_NORMS, **shapes.EXPERT_FEED_FORWARD}),
        layout=Layout(stacks=shapes.NUMBERED_EXPERTS, splits=shapes.FUSED_EXPERTS),
        settings=Settings(defaults=_WINDOWLESS, assumed={**_ASSUMED_OF_EXPERTS, "norm_topk_prob": True}),
    ),
)
QWEN = tuple(map(rows.capped_at_window, _TEXT))


_SECTIONS = (11, 11, 10)  # transformers' default division of rotations

_ATTENTION: shapes.Dimensions = {**shapes.ATTENTION, "attn_q.weight": ("n_embd", "2 n_query"), **shapes.HEAD_NORMS}
_STATE: shapes.Dimensions = {
    "attn_qkv.weight": ("n_embd", "n_linear_qkv"),
    "attn_gate.weight": ("n_embd", "n_linear_values"),
    "ssm_conv1d.weight": ("n_linear_conv", "n_linear_qkv"),
    "ssm_dt.bias": ("n_linear_heads",),
    "ssm_a": ("n_linear_heads",),
    "ssm_alpha.weight": ("n_embd", "n_linear_heads"),
    "ssm_beta.weight": ("n_embd", "n_linear_heads"),
    "ssm_norm.weight": ("n_linear_head",),
    "ssm_out.weight": ("n_linear_values", "n_embd"),
}


def _has_state(config: Config, i: int) -> bool:
    """Return whether layer `i` has a state; by default every fourth attends, as one does that predicts further."""
    kinds = config.values.get("layer_types")
    n_layers = config.integer("num_hidden_layers")
    if i >= n_layers:
        return False
    if kinds is None:
        return (i + 1) % (config.optional_integer("full_attention_interval") or 4) != 0
    if not isinstance(kinds, list) or len(kinds) != n_layers or set(kinds) - {"linear_attention", "full_attention"}:
        raise CheckpointError(
            f"config.json does not state which of {n_layers} layers are full attention.", "Check layer_types."
        )
    return bool(kinds[i] == "linear_attention")


def _layer(feed_forward: shapes.Dimensions, state: shapes.Dimensions = _STATE) -> shapes.LayerTensors:
    return lambda config, i: {
        **shapes.NORMS_OF_ATTENTION,
        **(state if _has_state(config, i) else _ATTENTION),
        **feed_forward,
    }


def _parts_of_heads(first: int, last: int) -> derive.RowOrder:
    """Return the rows of some of the four parts that Next's fused projection has of each head of keys.

    These are its query, the key, the values that share it and their gates.
    """

    def order(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
        n_keys, n_values = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
        size = config.integer("linear_key_head_dim")
        shared = n_values // max(1, n_keys) * config.integer("linear_value_head_dim")
        ends = np.cumsum([0, size, size, shared, shared])
        if n_keys == 0 or n_values % n_keys or n_rows != n_keys * ends[-1]:
            raise CheckpointError(f"{n_rows} rows do not split into {n_keys} key heads.", "Check config.json.")
        heads = np.arange(n_rows).reshape(n_keys, -1)
        return np.concatenate([heads[:, ends[i] : ends[i + 1]].reshape(-1) for i in range(first, last)])

    return order


def _tiled(rows_per_head: Callable[[Config], int]) -> derive.RowOrder:
    """Return llama.cpp's order of value heads: the first of every key head, then the second of every one, and so on.

    transformers keeps those of one key head together. Rows before them, queries and keys, stay where they are.
    """

    def order(config: Config, n_rows: int) -> npt.NDArray[np.intp]:
        n_keys, n_values = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
        n_tiled = n_values * rows_per_head(config)
        if n_keys == 0 or n_values % n_keys or not 0 < n_tiled <= n_rows:
            raise CheckpointError(f"{n_rows} rows do not split into {n_values} value heads.", "Check config.json.")
        heads = np.arange(n_rows - n_tiled, n_rows).reshape(n_keys, n_values // n_keys, -1)
        return np.concatenate([np.arange(n_rows - n_tiled), heads.swapaxes(0, 1).reshape(-1)])

    return order


_NORM_KINDS = (
    *("ATTN_NORM", "ATTN_POST_NORM", "ATTN_Q_NORM", "ATTN_K_NORM", "OUTPUT_NORM"),
    *("NEXTN_ENORM", "NEXTN_HNORM", "NEXTN_SHARED_HEAD_NORM"),
)
_BY_HEAD = _tiled(lambda _config: 1)
_BY_WIDTH = _tiled(lambda config: config.integer("linear_value_head_dim"))

_QWEN35 = Architecture(
    hf_classes=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    gguf_name="qwen35",
    hyperparameters=(
        *(rows.DECODER + rows.RMS_NORM),
        rows.u32("rope.dimension_count", rows.partly_rotated(0.25)),
        rows.i32_list("rope.dimension_sections", rows.rotation_sections(_SECTIONS)),
        rows.bool_list(
            "attention.recurrent_layers",
            lambda config: [_has_state(config, i) for i in range(shapes.n_all_layers(config))],
        ),
        rows.u32("full_attention_interval", lambda config: config.optional_integer("full_attention_interval") or 4),
        rows.u32("ssm.conv_kernel", "linear_conv_kernel_dim"),
        rows.u32("ssm.state_size", "linear_key_head_dim"),
        rows.u32("ssm.group_count", "linear_num_key_heads"),
        rows.u32("ssm.time_step_rank", "linear_num_value_heads"),
        rows.u32("ssm.inner_size", shapes.DIMENSIONS["n_linear_values"]),
        *rows.PREDICTION_ROW,
    ),
    tensors=RequiredTensors(layer=_layer(shapes.GATED_FEED_FORWARD)),
    names=TensorNames(skipped_modules=("visual.",), leaves_later_layers=True, n_prediction_layers=1),
    layout=Layout(
        row_orders={
            **dict.fromkeys(("ATTN_QKV", "ATTN_GATE", "SSM_CONV1D"), _BY_WIDTH),
            **dict.fromkeys(("SSM_A", "SSM_DT", "SSM_ALPHA", "SSM_BETA"), _BY_HEAD),
        },
        column_orders={"SSM_OUT": _BY_WIDTH},
        value_maps={**dict.fromkeys(_NORM_KINDS, derive.plus_one), "SSM_A": derive.negative_exponential},
        reshaped=("SSM_CONV1D",),
        splits={".dt_bias": {".dt_proj.bias": derive.whole_tensor}},
    ),
    settings=Settings(
        assumed={
            "hidden_act": "silu",
            "attention_bias": False,
            "linear_value_head_dim": lambda config: config.integer("linear_key_head_dim"),
        }
    ),
)

_QWEN35_EXPERTS = replace(
    _QWEN35,
    hf_classes=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    gguf_name="qwen35moe",
    hyperparameters=(*rows.without(_QWEN35.hyperparameters, "feed_forward_length"), *_EXPERT_ROWS, _SHARED_EXPERT_ROW),
    tensors=replace(_QWEN35.tensors, layer=_layer({**shapes.EXPERT_FEED_FORWARD, **_SHARED_EXPERT})),
    layout=replace(
        _QWEN35.layout, stacks=shapes.NUMBERED_EXPERTS, splits={**_QWEN35.layout.splits, **shapes.FUSED_EXPERTS}
    ),
)

_STATE_OF_NEXT: shapes.Dimensions = {
    **shapes.without(_STATE, "ssm_alpha.weight", "ssm_beta.weight"),
    "ssm_ba.weight": ("n_embd", "2 n_linear_heads"),
}

QWEN35 = (
    _QWEN35,
    _QWEN35_EXPERTS,
    replace(
        _QWEN35_EXPERTS,
        hf_classes=("Qwen3NextForCausalLM",),
        gguf_name="qwen3next",
        hyperparameters=rows.without(_QWEN35_EXPERTS.hyperparameters, "rope.dimension_sections"),
        tensors=replace(
            _QWEN35_EXPERTS.tensors, layer=_layer({**shapes.EXPERT_FEED_FORWARD, **_SHARED_EXPERT}, _STATE_OF_NEXT)
        ),
        layout=replace(
            _QWEN35_EXPERTS.layout,
            row_orders={},
            column_orders={},
            splits={
                **_QWEN35_EXPERTS.layout.splits,
                ".in_proj_qkvz.weight": {
                    ".in_proj_qkv.weight": derive.rows_in(_parts_of_heads(0, 3)),
                    ".in_proj_z.weight": derive.rows_in(_parts_of_heads(3, 4)),
                },
            },
        ),
        settings=replace(
            _QWEN35_EXPERTS.settings,
            assumed={**_ASSUMED_OF_EXPERTS, **_WINDOWLESS, **_QWEN35.settings.assumed, "norm_topk_prob": True},
        ),
    ),
)


_SECTIONS_2, _SECTIONS_3 = (16, 24, 24), (24, 20, 20)  # transformers' defaults
_N_DEEPSTACK = 3


def _unscaled(config: Config) -> Value:
    """Return nothing to write. Raises CheckpointError when positions are scaled."""
    rows.kind_of(config, ("default", "mrope"))
    return None


def _n_deepstack(config: Config) -> Value:
    layers = config.section("vision_config").values.get("deepstack_visual_indexes")
    return len(layers) if isinstance(layers, list) else _N_DEEPSTACK


def _unrotated(config: Config) -> tuple[str, ...]:
    """Warn of the pairs that llama.cpp takes for a fourth section: those beyond thrice the section whose turn it is."""
    sections = rows.rotation_sections(_SECTIONS_3)(config)
    assert isinstance(sections, list)
    n_pairs, thrice = sum(sections), [3 * n for n in sections]
    n_beyond = sum(i >= thrice[i % 3] for i in range(n_pairs))
    if not n_beyond:
        return ()
    return (f"llama.cpp does not rotate {n_beyond} of the {n_pairs} pairs of a head, which turn slowest.",)


def _outputs_as_rows(matrix: FileTensor, n_inputs: int) -> SourceTensor:
    return matrix if matrix.shape[0] == n_inputs else derive.TransposedTensor(matrix, matrix.name)


def _half_of_rows(second: bool) -> derive.Cut:
    def half(matrix: FileTensor, name: str, config: Config) -> RearrangedTensor:
        turned = _outputs_as_rows(matrix, config.integer("hidden_size"))
        n_columns, n_rows = turned.shape
        order = np.arange(n_rows)[n_rows // 2 :] if second else np.arange(n_rows // 2)
        return RearrangedTensor(turned, name, (n_columns, len(order)), order)

    return shapes.each_matrix(half)


_DOWN = shapes.each_matrix(
    lambda matrix, _name, config: _outputs_as_rows(matrix, shapes.DIMENSIONS["n_ff_expert"](config))
)


def _seeing(entry: Architecture, hf_classes: tuple[str, ...], name: str, sections: tuple[int, ...]) -> Architecture:
    return replace(
        entry,
        hf_classes=hf_classes,
        gguf_name=name,
        hyperparameters=(
            *rows.without(entry.hyperparameters, "rope.scaling."),
            rows.string("rope.scaling.type", _unscaled),
            rows.i32_list("rope.dimension_sections", rows.rotation_sections(sections)),
        ),
        names=replace(entry.names, skipped_modules=("visual.",)),
    )


_BY_CLASS = {name: entry for entry in QWEN for name in entry.hf_classes}
_DEEPSTACK = (rows.u32("n_deepstack_layers", _n_deepstack),)
_VL_2 = _seeing(
    _BY_CLASS["Qwen2ForCausalLM"],
    ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    "qwen2vl",
    _SECTIONS_2,
)
_VL_3 = _seeing(_BY_CLASS["Qwen3ForCausalLM"], ("Qwen3VLForConditionalGeneration",), "qwen3vl", _SECTIONS_3)
_VL_EXPERTS = _seeing(
    _BY_CLASS["Qwen3MoeForCausalLM"], ("Qwen3VLMoeForConditionalGeneration",), "qwen3vlmoe", _SECTIONS_3
)

_VL = (
    # in llama.cpp the heads together are as wide as the model
    replace(_VL_2, settings=_VL_2.settings.plus(assumed={"head_dim": shapes.even_head_size})),
    replace(
        _VL_3,
        hyperparameters=_VL_3.hyperparameters + _DEEPSTACK,
        settings=_VL_3.settings.plus(assumed={"attention_bias": False, **_WINDOWLESS}),
        approximations=_unrotated,
    ),
    replace(
        _VL_EXPERTS,
        hyperparameters=_VL_EXPERTS.hyperparameters + _DEEPSTACK,
        layout=replace(
            _VL_EXPERTS.layout,
            splits={
                ".experts.gate_up_proj": {
                    ".experts.gate_proj.weight": _half_of_rows(second=False),
                    ".experts.up_proj.weight": _half_of_rows(second=True),
                },
                ".experts.down_proj": {".experts.down_proj.weight": _DOWN},
            },
        ),
        settings=_VL_EXPERTS.settings.plus(assumed={"attention_bias": False, **_WINDOWLESS}),
        approximations=_unrotated,
    ),
)
# those that hear too, beside what speaks
_OMNI_2 = replace(
    _VL[0],
    hf_classes=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
    names=replace(
        _VL[0].names, skipped_modules=("visual.", "audio_tower.", "talker.", "token2wav."), renames={r"^thinker\.": ""}
    ),
)
_OMNI_3 = replace(
    _VL[-1],
    hf_classes=("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"),
    names=replace(
        _VL[-1].names, skipped_modules=("visual.", "audio_tower.", "talker.", "code2wav."), renames={r"^thinker\.": ""}
    ),
)
QWEN_VL = (*_VL, _OMNI_2, _OMNI_3)
