"""DeepSeek V2 and V3: keys and values compressed to one latent head, dense layers before those with experts.

V3.2, which gguf lacks, has an indexer in each layer, which chooses the tokens that are attended to; in GLM 5 some
layers share that choice. GLM 4.7 Flash is V3 again. Youtu has no experts. MiniCPM 3 is another graph to llama.cpp: keys
and values are expanded before they are cached, halves are rotated, and embeddings, layers and logits are scaled by
constants. Kimi Linear has DeepSeek's attention, without positions, in a few layers; in the others a state that each of
its dimensions forgets at its own rate (KDA).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import (
    Architecture,
    Hyperparameter,
    Layout,
    RequiredTensors,
    Settings,
    TensorNames,
    Value,
)
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import StackedTensor, TransposedTensor, negative_exponential, whole_tensor
from quantizer.convert.source_model import FileTensor


def _sum_of(*names: str) -> Callable[[Config], Value]:
    return lambda config: sum(config.integer(name) for name in names)


def _is_lite(config: Config) -> bool:
    """Return whether llama.cpp takes queries for uncompressed: it decides by these sizes, whatever the metadata."""
    n_layers = config.integer("num_hidden_layers")
    return n_layers in (26, 27) or (n_layers == 48 and config.integer("vocab_size") == 128_256)


def _query_rank(config: Config) -> Value:
    rank = config.optional_integer("q_lora_rank")
    return 0 if rank is None and not _is_lite(config) else rank  # llama.cpp requires the row but of a lite model


def _log_multiplier(config: Config) -> Value:
    """Return the tenth of the weight by which llama.cpp sharpens attention, of which YaRN sharpens a part.

    transformers multiplies the scale of attention by the square of `mscale(factor, mscale_all_dim)` whatever the
    scaling, and the rotated part by that of `Yarn.attention` besides. llama.cpp multiplies the scale by the square of
    its factor of the rotated part, times `1 + log(factor) * this`. Sources: `yarn_apply_mscale` in
    modeling_deepseek_v3.py, transformers 5.24; src/models/deepseek2.cpp as vendored in llama-cpp-python 0.3.36.
    """
    weight, yarn = rows.rope_of(config).optional_number("mscale_all_dim"), rows.yarn_of(config)
    factor = rows.scaling_factor(config)
    own = yarn.attention if yarn else rows.mscale(float(factor or 1), 1.0)  # type: ignore[arg-type]
    if own == 1 or not isinstance(factor, float) or factor <= 1:
        return None if weight is None else 0.1 * weight
    return (rows.mscale(factor, weight or 0.0) / own - 1) / math.log(factor)


def _sharpened_queries(config: Config, n_rows: int) -> npt.NDArray[np.float32]:
    """Return what queries are multiplied with, where llama.cpp's own scale of attention is not transformers'.

    A graph with the weight of `_log_multiplier` has it for linear and YaRN scalings, but none for a dynamic one.
    """
    rope, kind, yarn = rows.rope_of(config), rows.kind_of(config), rows.yarn_of(config)
    factor = rope.optional_number("factor") or 1.0
    wanted = 1.0 if kind == "default" else rows.mscale(factor, rope.optional_number("mscale_all_dim") or 0.0)
    own = yarn.attention if yarn else rows.mscale(factor, 1.0) if kind == "linear" else 1.0
    return np.full(n_rows, (wanted / own) ** 2, np.float32)


def _dynamically_sharpened(config: Config, n_rows: int) -> npt.NDArray[np.float32]:
    is_sharpened = rows.kind_of(config) in ("linear", "yarn")
    return np.ones(n_rows, np.float32) if is_sharpened else _sharpened_queries(config, n_rows)


def _with_correction(
    hyperparameters: Iterable[Hyperparameter], native: Callable[[Config, rows.Yarn], float]
) -> tuple[Hyperparameter, ...]:
    correction = rows.attention_correction(native)
    return (*rows.without(hyperparameters, correction.key), correction)


_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"

# which layers have experts, how many are shared, and how the others are chosen
EXPERT_CHOICE = (
    rows.u32("leading_dense_block_count", "first_k_dense_replace"),
    rows.u32("expert_feed_forward_length", "moe_intermediate_size"),
    rows.u32("expert_shared_count", "n_shared_experts"),
    *rows.GROUPS,
    rows.gating("scoring_func"),
    rows.f32("expert_weights_scale", rows.number("routed_scaling_factor")),
    rows.boolean("expert_weights_norm", lambda config: config.flag("norm_topk_prob") or None),
)
_ROWS = (
    *(rows.SIZES + rows.ROPE + rows.RMS_NORM + rows.VOCABULARY + rows.EXPERTS),
    rows.u32("attention.head_count", "num_attention_heads"),
    # to llama.cpp all heads share the latent one
    rows.u32("attention.head_count_kv", 1),
    rows.u32("attention.key_length", _sum_of("kv_lora_rank", "qk_rope_head_dim")),
    rows.u32("attention.value_length", "kv_lora_rank"),
    rows.u32("attention.key_length_mla", _sum_of("qk_nope_head_dim", "qk_rope_head_dim")),
    rows.u32("attention.value_length_mla", "v_head_dim"),
    rows.u32("attention.kv_lora_rank", "kv_lora_rank"),
    rows.u32("attention.q_lora_rank", _query_rank),
    rows.u32("rope.dimension_count", "qk_rope_head_dim"),
    rows.f32(_LOG_MULTIPLIER, _log_multiplier),
    *EXPERT_CHOICE,
)
# llama.cpp takes the weight for that of `mscale` too, which cancels; without it the factor is YaRN's usual one
_V3_ROWS = _with_correction(
    _ROWS, lambda config, yarn: 1.0 if _log_multiplier(config) else rows.mscale(yarn.factor, 1.0)
)

_ATTENTION: shapes.Dimensions = {
    **shapes.PRE_NORMS,
    "attn_kv_a_norm.weight": ("n_kv_rank",),
    "attn_kv_a_mqa.weight": ("n_embd", "n_kv_rank_and_rope"),
    "attn_k_b.weight": ("n_nope", "n_kv_rank", "n_heads"),
    "attn_v_b.weight": ("n_kv_rank", "n_value", "n_heads"),
    "attn_output.weight": ("n_values", "n_embd"),
}
_QUERIES: shapes.Dimensions = {"attn_q.weight": ("n_embd", "n_mla_query")}
_COMPRESSED_QUERIES: shapes.Dimensions = {
    "attn_q_a.weight": ("n_embd", "n_q_rank"),
    "attn_q_a_norm.weight": ("n_q_rank",),
    "attn_q_b.weight": ("n_q_rank", "n_mla_query"),
}
_EXPERTS: shapes.Dimensions = {**shapes.EXPERT_FEED_FORWARD, **shapes.SHARED_EXPERTS}


def _attention(config: Config) -> shapes.Dimensions:
    return {**_ATTENTION, **(_COMPRESSED_QUERIES if config.optional_integer("q_lora_rank") else _QUERIES)}


def _layer(config: Config, i: int) -> shapes.Dimensions:
    is_dense = i < config.integer("first_k_dense_replace")
    return {**_attention(config), **(shapes.GATED_FEED_FORWARD if is_dense else _EXPERTS)}


def _heads(tensor: FileTensor, config: Config) -> Iterator[tuple[FileTensor, FileTensor]]:
    """Yield for each head the rows that make its keys, and those that make its values."""
    n_nope, n_heads = config.integer("qk_nope_head_dim"), config.integer("num_attention_heads")
    n_rows = n_nope + config.integer("v_head_dim")
    if len(tensor.shape) != 2 or tensor.shape[1] != n_heads * n_rows:
        raise CheckpointError(f"{tensor.name} does not split into {n_heads} attention heads.", "Check config.json.")
    for start in range(0, n_heads * n_rows, n_rows):
        yield tensor.rows(start, start + n_nope), tensor.rows(start + n_nope, start + n_rows)


def _keys(tensor: FileTensor, name: str, config: Config) -> StackedTensor:
    return StackedTensor(name, tuple(TransposedTensor(keys, name) for keys, _ in _heads(tensor, config)))


def _values(tensor: FileTensor, name: str, config: Config) -> StackedTensor:
    return StackedTensor(name, tuple(values for _, values in _heads(tensor, config)))


def _group_limit(config: Config) -> tuple[str, ...]:
    n_groups, n_used = (config.optional_integer(name) or 1 for name in ("n_group", "topk_group"))
    if config.text("topk_method") != "group_limited_greedy" or n_groups == n_used:
        return ()
    return (
        f"The model looks for experts in the {n_used} of {n_groups} groups that hold the best single ones;"
        " llama.cpp goes by the best two of each group, so at times other experts answer.",
    )


def dense_before_sparse(config: Config) -> list[str]:
    """Return the kinds of feed-forward of all layers as transformers lists them."""
    n_dense = config.integer("first_k_dense_replace")
    return ["dense" if i < n_dense else "sparse" for i in range(config.integer("num_hidden_layers"))]


def _whole_parts_rotated(config: Config) -> dict[str, Any]:
    """Return the rope settings with the whole of `qk_rope_head_dim` rotated, as it is without a setting."""
    settings = config.section("rope_parameters").values
    return {key: 1.0 if key == "partial_rotary_factor" else value for key, value in settings.items()}


_QUERY_KINDS = ("ATTN_Q", "ATTN_Q_B")
_ASSUMED: dict[str, Any] = {
    "hidden_act": "silu",
    "moe_layer_freq": 1,
    "q_lora_rank": lambda config: None if _is_lite(config) else config.optional_integer("q_lora_rank"),
}
_V3 = Architecture(
    hf_classes=("DeepseekV3ForCausalLM",),
    gguf_name="deepseek2",
    hyperparameters=_V3_ROWS,
    tensors=RequiredTensors(layer=_layer),
    names=TensorNames(leaves_later_layers=True),
    layout=Layout(
        splits={
            "kv_b_proj.weight": {"k_b_proj.weight": _keys, "v_b_proj.weight": _values},
            **shapes.CHOICE_CORRECTION,
            **shapes.FUSED_EXPERTS,
        },
        stacks=shapes.NUMBERED_EXPERTS,
        row_factors=dict.fromkeys(_QUERY_KINDS, _dynamically_sharpened),
    ),
    settings=Settings(
        defaults={"scoring_func": "sigmoid"}, assumed={**_ASSUMED, "rope_interleave": True, "topk_method": "noaux_tc"}
    ),
    unadapted=("output.weight", *(f"attn_{name}.weight" for name in ("q", "q_a", "q_b", "kv_a_mqa", "k_b", "v_b"))),
)


_ROTATED_AT_ONCE = 64  # by a Hadamard matrix
_INDEXER: shapes.Dimensions = {
    "indexer.attn_q_b.weight": ("n_q_rank", "n_index_query"),
    "indexer.attn_k.weight": ("n_embd", "n_index_head"),
    "indexer.k_norm.weight": ("n_index_head",),
    "indexer.k_norm.bias": ("n_index_head",),
    "indexer.proj.weight": ("n_embd", "n_index_heads"),
}


def _run_indexers(config: Config) -> list[bool]:
    """Return which layers choose tokens themselves; the others take the choice of the layer before them."""
    n_layers, listed = config.integer("num_hidden_layers"), config.values.get("indexer_types")
    if listed is None:
        every = max(1, config.integer("index_topk_freq"))
        first = config.integer("index_skip_topk_offset") - 1
        return [max(i - first, 0) % every == 0 for i in range(n_layers)]
    if not isinstance(listed, list) or len(listed) < n_layers or listed[0] != "full":
        raise CheckpointError("config.json has an invalid list of indexer layers.", "Check indexer_types.")
    return [kind == "full" for kind in listed[:n_layers]]


def _indexed_layers(config: Config) -> set[int]:
    """Return the layers with an indexer; that which predicts one token further attends to everything."""
    return {i for i, runs in enumerate(_run_indexers(config)) if runs}


_V32 = replace(
    _V3,
    hf_classes=("DeepseekV32ForCausalLM",),
    gguf_name="deepseek32",
    hyperparameters=(
        # here `mscale` counts as 1
        *_with_correction(
            _ROWS,
            lambda config, yarn: (
                rows.mscale(yarn.factor, 1.0) / rows.mscale(yarn.factor, 10 * (_log_multiplier(config) or 0.0))  # type: ignore[operator]
            ),
        ),
        rows.u32("attention.indexer.head_count", "index_n_heads"),
        rows.u32("attention.indexer.key_length", "index_head_dim"),
        rows.u32("attention.indexer.top_k", "index_topk"),
        *rows.PREDICTION_ROW,
    ),
    tensors=replace(_V3.tensors, layer=lambda config, i: {**_layer(config, i), **_INDEXER}),
    names=replace(_V3.names, map_of="glm-dsa", n_prediction_layers=1),
    settings=_V3.settings.plus(
        defaults={
            "first_k_dense_replace": 3,
            "norm_topk_prob": True,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "index_topk": 2048,
        },
        assumed={
            "attention_bias": False,
            "mlp_layer_types": dense_before_sparse,
            "layer_types": lambda config: ["indexed_attention"] * config.integer("num_hidden_layers"),
            # llama.cpp would abort over a part of what it rotates at once
            "index_head_dim": lambda config: (
                -(-config.integer("index_head_dim") // _ROTATED_AT_ONCE) * _ROTATED_AT_ONCE
            ),
        },
    ),
)


DEEPSEEK = (
    _V3,
    _V32,
    replace(
        _V32,
        hf_classes=("GlmMoeDsaForCausalLM",),
        gguf_name="glm-dsa",
        hyperparameters=(
            *_with_correction(
                rows.without(_V32.hyperparameters, _LOG_MULTIPLIER),
                lambda _config, yarn: rows.mscale(yarn.factor, 1.0),
            ),
            rows.bool_list("attention.indexer.types", _run_indexers),
        ),
        # this graph reads no weight
        layout=replace(_V32.layout, row_factors=dict.fromkeys(_QUERY_KINDS, _sharpened_queries)),
        tensors=replace(
            _V32.tensors,
            layer=lambda config, i: {**_layer(config, i), **(_INDEXER if i in _indexed_layers(config) else {})},
        ),
        names=replace(_V32.names, map_of=""),
        settings=_V32.settings.plus(
            defaults={"index_n_heads": 32, "index_topk_freq": 1, "index_skip_topk_offset": 2},
            assumed={"index_topk_pattern": None, "partial_rotary_factor": 1.0, "rope_parameters": _whole_parts_rotated},
        ),
    ),
    replace(
        _V3,
        hf_classes=("DeepseekV2ForCausalLM",),
        settings=replace(
            _V3.settings,
            defaults={"scoring_func": "softmax", "topk_method": "greedy"},
            assumed={
                **_ASSUMED,
                "topk_method": lambda config: (
                    "group_limited_greedy" if config.text("topk_method") == "group_limited_greedy" else "greedy"
                ),
                "n_group": lambda config: (
                    1 if config.text("topk_method") == "greedy" else config.optional_integer("n_group")
                ),
            },
        ),
        approximations=_group_limit,
    ),
    replace(
        _V3,
        hf_classes=("Glm4MoeLiteForCausalLM",),
        hyperparameters=(*_V3_ROWS, *rows.PREDICTION_ROW),
        names=replace(_V3.names, n_prediction_layers=1),
        settings=replace(
            _V3.settings,
            defaults={"scoring_func": "sigmoid", "first_k_dense_replace": 1, "norm_topk_prob": True},
            assumed={
                **_V3.settings.assumed,
                "attention_bias": False,
                "mlp_layer_types": dense_before_sparse,
                "partial_rotary_factor": 1.0,
                "rope_parameters": _whole_parts_rotated,
            },
        ),
    ),
    replace(
        _V3,
        hf_classes=("YoutuForCausalLM",),
        hyperparameters=(
            *(row for row in _V3_ROWS if row not in (*rows.EXPERTS, *EXPERT_CHOICE)),
            rows.u32("leading_dense_block_count", "num_hidden_layers"),
            # required by llama.cpp, although no layer has experts
            rows.u32("expert_feed_forward_length", "moe_intermediate_size", "intermediate_size"),
            rows.u32("expert_shared_count", 0),
        ),
        tensors=replace(_V3.tensors, layer=lambda config, _i: {**_attention(config), **shapes.GATED_FEED_FORWARD}),
        settings=replace(
            _V3.settings,
            defaults={"tie_word_embeddings": True},
            assumed={**_V3.settings.assumed, "attention_bias": False},
        ),
    ),
    Architecture(
        hf_classes=("MiniCPM3ForCausalLM",),
        gguf_name="minicpm3",
        hyperparameters=(
            *rows.SIZES,
            *rows.without(rows.ROPE, "rope.scaling."),
            *(rows.LONG_ROPE + rows.RMS_NORM + rows.VOCABULARY),
            rows.u32("attention.head_count", "num_attention_heads"),
            rows.u32("attention.head_count_kv", "num_attention_heads"),
            rows.u32("attention.key_length", _sum_of("qk_nope_head_dim", "qk_rope_head_dim")),
            rows.u32("attention.value_length", "v_head_dim"),
            rows.u32("attention.kv_lora_rank", "kv_lora_rank"),
            rows.u32("attention.q_lora_rank", "q_lora_rank"),
            rows.u32("rope.dimension_count", "qk_rope_head_dim"),
        ),
        tensors=RequiredTensors(
            layer={
                **shapes.PRE_NORMS,
                **_COMPRESSED_QUERIES,
                "attn_kv_a_norm.weight": ("n_kv_rank",),
                "attn_kv_a_mqa.weight": ("n_embd", "n_kv_rank_and_rope"),
                "attn_kv_b.weight": ("n_kv_rank", "n_nope_and_value"),
                "attn_output.weight": ("n_values", "n_embd"),
                **shapes.GATED_FEED_FORWARD,
            },
            generate=rows.long_factors(rows.integer("qk_rope_head_dim")),
        ),
        settings=Settings(
            # those of the published model
            defaults={"tie_word_embeddings": True},
            assumed={
                "hidden_act": "silu",
                "attention_bias": False,
                "mlp_bias": False,
                "scale_emb": 12,
                "scale_depth": 1.4,
                "dim_model_base": 256,
            },
        ),
        unadapted=_V3.unadapted,
    ),
)


_FULL_EVERY = 4


def _attends(config: Config, i: int) -> bool:
    """Return whether layer `i` attends, by the list of transformers, the published one, or the class's default."""
    kinds = config.values.get("layer_types")
    chosen = config.section("linear_attn_config").values.get("full_attn_layers")
    if isinstance(kinds, list) and i < len(kinds):
        return bool(kinds[i] == "full_attention")
    return i + 1 in chosen if isinstance(chosen, list) else i > 0 and i % _FULL_EVERY == 0


def _n_dense(config: Config) -> int:
    kinds = config.values.get("mlp_layer_types")
    if isinstance(kinds, list):
        return next((i for i, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    return config.integer("first_k_dense_replace")


def _of_kda(published: str, name: str) -> Callable[[Config], int]:
    """Return a function that reads a setting of the states, which published checkpoints keep in an object."""
    return lambda config: config.section("linear_attn_config").optional_integer(published) or config.integer(name)


_kda_head = _of_kda("head_dim", "linear_head_dim")
_kda_kernel = _of_kda("short_conv_kernel_size", "linear_conv_kernel_dim")


def _kimi_layer(config: Config, i: int) -> shapes.Dimensions:
    n_dense = _n_dense(config)
    feed_forward = shapes.GATED_FEED_FORWARD if i < n_dense else {**_EXPERTS, "exp_probs_b.bias": ("n_expert",)}
    if _attends(config, i):
        return {**_attention(config), **feed_forward}
    n_embd, n_heads, head = config.integer("hidden_size"), config.integer("num_attention_heads"), _kda_head(config)
    width = n_heads * head
    return {
        **shapes.PRE_NORMS,
        **{f"attn_{name}.weight": (n_embd, width) for name in "qkv"},
        **{f"ssm_conv1d_{name}.weight": (_kda_kernel(config), 1, width) for name in "qkv"},
        **{f"ssm_{gate}_a.weight": (n_embd, head) for gate in "fg"},
        **{f"ssm_{gate}_b.weight": (head, width) for gate in "fg"},
        "ssm_beta.weight": (n_embd, n_heads),
        "ssm_a": (1, n_heads),
        "ssm_dt.bias": (width,),
        "ssm_norm.weight": (head,),
        "attn_output.weight": (width, n_embd),
        **feed_forward,
    }


_REPLACED = ("attention.head_count_kv", "leading_dense_block_count", "attention.q_lora_rank")

KIMI = Architecture(
    hf_classes=("KimiLinearForCausalLM",),
    gguf_name="kimi-linear",
    hyperparameters=(
        *rows.without(_V3.hyperparameters, *_REPLACED, "rope.scaling.", "rope.freq_base"),
        # the latent head, where a layer attends
        rows.u32_list("attention.head_count_kv", rows.each_layer(lambda config, i: int(_attends(config, i)))),
        rows.u32("leading_dense_block_count", _n_dense),
        rows.u32("ssm.conv_kernel", _kda_kernel),
        rows.u32("kda.head_dim", _kda_head),
    ),
    tensors=RequiredTensors(layer=_kimi_layer),
    names=TensorNames(
        # transformers saves plain feed-forwards under the name of experts
        renames={r"\.block_sparse_moe\.((gate|up|down)_proj)\.": r".mlp.\1."},
        leaves_later_layers=True,
    ),
    layout=Layout(
        value_maps={"SSM_A": negative_exponential},
        reshaped=("SSM_A", "SSM_CONV1D_Q", "SSM_CONV1D_K", "SSM_CONV1D_V"),
        splits={
            "kv_b_proj.weight": _V3.layout.splits["kv_b_proj.weight"],
            **shapes.CHOICE_CORRECTION,
            ".dt_bias": {".dt_proj.bias": whole_tensor},
            **shapes.FUSED_EXPERTS,
        },
        stacks=shapes.NUMBERED_EXPERTS,
    ),
    settings=Settings(
        aliases={
            "model_max_length": "max_position_embeddings",
            "num_experts_per_token": "num_experts_per_tok",
            "num_shared_experts": "n_shared_experts",
            "moe_renormalize": "norm_topk_prob",
            "num_expert_group": "n_group",
            "moe_router_activation_func": "scoring_func",
        },
        defaults={"scoring_func": "sigmoid", "first_k_dense_replace": 1},
        assumed={
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "q_lora_rank": None,
            "mla_use_nope": True,
            "linear_num_heads": lambda config: config.integer("num_attention_heads"),
            "moe_layer_freq": 1,
        },
    ),
    unadapted=_V3.unadapted,
)
