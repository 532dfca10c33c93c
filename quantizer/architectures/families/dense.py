"""Dense decoders that differ little from Llama.

Apertus: an activation with numbers of its own in each layer, which llama.cpp has in the metadata. Command R and R7B:
attention and feed-forward side by side after one norm, the logits scaled. GLM 4: four norms per layer, gate and up in
one matrix, half of each head rotated. InternLM 2: queries, keys and values in one matrix, group by group. Jais 2:
layer norms and biases everywhere, a feed-forward without a gate. OLMo: norms without weights, queries, keys and values
clipped. OLMo 2 and 3: norms after attention and feed-forward, and of whole queries and keys. Phi 3 and 4: matrices
fused as they are stored, positions scaled by longrope. Seed-OSS: biases of queries, keys and values. StableLM 2: layer
norms with biases, a quarter of each head rotated; the 12B normalises its heads one by one. StarCoder 2: layer norms
and biases everywhere, a feed-forward without a gate.
"""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import (
    Architecture,
    Layout,
    RequiredTensors,
    Settings,
    TensorMetadata,
    TensorNames,
)
from quantizer.convert import derived_tensors as derive

_GLM = Architecture(
    hf_classes=("Glm4ForCausalLM",),
    gguf_name="glm4",
    hyperparameters=(*rows.DECODER, *rows.RMS_NORM, rows.u32("rope.dimension_count", rows.partly_rotated(0.5))),
    tensors=RequiredTensors(
        layer={**shapes.PRE_NORMS, **shapes.POST_NORMS, **shapes.ATTENTION, **shapes.FUSED_FEED_FORWARD}
    ),
    settings=Settings(assumed={"hidden_act": "silu"}),
)


_INTERNLM = Architecture(
    hf_classes=("InternLM2ForCausalLM",),
    gguf_name="internlm2",
    hyperparameters=rows.DECODER + rows.RMS_NORM,
    tensors=RequiredTensors(layer=shapes.LLAMA_LAYER),
    layout=Layout(
        splits={
            ".attention.wqkv.weight": {
                ".attention.wq.weight": derive.rows_in(derive.grouped_queries),
                ".attention.wk.weight": derive.rows_in(derive.grouped_keys),
                ".attention.wv.weight": derive.rows_in(derive.grouped_values),
            }
        }
    ),
    settings=Settings(assumed={"hidden_act": "silu", "bias": False}),
)


_OLMO = Architecture(
    hf_classes=("OlmoForCausalLM",),
    gguf_name="olmo",
    hyperparameters=(
        *rows.DECODER,
        # of all its norms, which have no weights either
        rows.f32("attention.layer_norm_epsilon", 1e-5),
        rows.f32("attention.clamp_kqv", rows.number("clip_qkv")),
    ),
    tensors=RequiredTensors(
        model=lambda config: shapes.without(shapes.decoder(config), "output_norm.weight"),
        layer={**shapes.ATTENTION, **shapes.GATED_FEED_FORWARD},
    ),
    layout=Layout(row_orders={"ATTN_Q": derive.unpermute_queries, "ATTN_K": derive.unpermute_keys}),
    settings=Settings(assumed={"hidden_act": "silu", "attention_bias": False}),
)

_OLMO_2 = Architecture(
    hf_classes=("Olmo2ForCausalLM",),
    gguf_name="olmo2",
    hyperparameters=rows.DECODER + rows.RMS_NORM,
    tensors=RequiredTensors(
        layer={
            "attn_q_norm.weight": ("n_query",),
            "attn_k_norm.weight": ("n_kv",),
            **shapes.POST_NORMS,
            **shapes.ATTENTION,
            **shapes.GATED_FEED_FORWARD,
        },
        needs_output=True,
    ),
    settings=Settings(assumed={"hidden_act": "silu"}),
)

# the same to llama.cpp, with windows
_OLMO_3 = replace(
    _OLMO_2,
    hf_classes=("Olmo3ForCausalLM",),
    hyperparameters=rows.DECODER + rows.RMS_NORM + rows.WINDOW + rows.WINDOW_PATTERN + rows.UNSCALED_WINDOW_ROPE,
)


_STABLELM = Architecture(
    hf_classes=("StableLmForCausalLM",),
    gguf_name="stablelm",
    hyperparameters=(
        *(rows.DECODER + rows.LAYER_NORM),
        rows.u32("rope.dimension_count", rows.partly_rotated(0.25)),
        rows.flag("use_parallel_residual", "use_parallel_residual"),
    ),
    tensors=RequiredTensors(
        model=shapes.decoder_with_bias,
        needs_output=True,
        # with attention and feed-forward side by side there is no norm between them
        layer={
            "attn_norm.weight": ("n_embd",),
            "attn_norm.bias": ("n_embd",),
            **shapes.ATTENTION,
            **shapes.GATED_FEED_FORWARD,
        },
    ),
    layout=Layout(
        stacks=(
            shapes.Stack("q_layernorm.norms.", "q_layernorm.", lambda config: config.integer("num_attention_heads")),
            shapes.Stack("k_layernorm.norms.", "k_layernorm.", lambda config: config.integer("num_key_value_heads")),
        )
    ),
    settings=Settings(assumed={"hidden_act": "silu"}),
)


_WEIGHTS: shapes.Dimensions = {**shapes.NORMED_ATTENTION, **shapes.UNGATED_FEED_FORWARD}

_STARCODER = rows.capped_at_window(
    Architecture(
        hf_classes=("Starcoder2ForCausalLM",),
        gguf_name="starcoder2",
        hyperparameters=rows.DECODER + rows.LAYER_NORM,
        tensors=RequiredTensors(model=shapes.decoder_with_bias, layer={**_WEIGHTS, **shapes.biases(_WEIGHTS)}),
        settings=Settings(
            defaults={"tie_word_embeddings": True}, assumed={"hidden_act": "gelu_pytorch_tanh", "use_bias": True}
        ),
    )
)


_PHI = rows.capped_at_window(
    Architecture(
        hf_classes=("Phi3ForCausalLM",),
        gguf_name="phi3",
        hyperparameters=(
            *rows.without(rows.DECODER, "rope.scaling."),
            *rows.RMS_NORM,
            rows.u32("rope.dimension_count", rows.partly_rotated(1.0)),
            *rows.LONG_ROPE,
            # llama.cpp 0.3.36 reads it and runs without
            rows.u32("attention.sliding_window", lambda c: c.optional_integer("sliding_window") or 0),
        ),
        tensors=RequiredTensors(
            layer={**shapes.PRE_NORMS, **shapes.FUSED_ATTENTION, **shapes.FUSED_FEED_FORWARD},
            generate=rows.long_factors(rows.partly_rotated(1.0)),
        ),
        settings=Settings(assumed={"hidden_act": "silu"}),
    )
)


_N_LAYERS_WITH_HEAD_NORMS = 64
_COMMAND_R = Architecture(
    hf_classes=("CohereForCausalLM",),
    gguf_name="command-r",
    hyperparameters=(
        *rows.without(rows.DECODER, "context_length", "rope.scaling."),
        # the first checkpoints understate the other
        rows.u32("context_length", "model_max_length", "max_position_embeddings"),
        *rows.LAYER_NORM,
        rows.string("rope.scaling.type", rows.no_scaling),
        rows.f32("logit_scale", "logit_scale"),
    ),
    tensors=RequiredTensors(layer={"attn_norm.weight": ("n_embd",), **shapes.ATTENTION, **shapes.GATED_FEED_FORWARD}),
    settings=Settings(
        defaults={"tie_word_embeddings": True, "logit_scale": 0.0625},
        assumed={
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "use_qk_norm": lambda config: config.integer("num_hidden_layers") >= _N_LAYERS_WITH_HEAD_NORMS,
        },
    ),
)

_COMMAND_R7B = replace(
    _COMMAND_R,
    hf_classes=("Cohere2ForCausalLM",),
    gguf_name="cohere2",
    hyperparameters=(
        *(_COMMAND_R.hyperparameters + rows.VOCABULARY + rows.WINDOW),
        rows.windows_unless_every(4),
        rows.u32("rope.dimension_count", rows.partly_rotated(1.0)),
    ),
    settings=replace(
        _COMMAND_R.settings,
        assumed={
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "use_qk_norm": False,
            "rotary_pct": 1.0,
        },
    ),
)

_SEED = Architecture(
    hf_classes=("SeedOssForCausalLM",),
    gguf_name="seed_oss",
    hyperparameters=rows.DECODER + rows.RMS_NORM,
    tensors=RequiredTensors(
        layer=lambda config, _i: {
            **shapes.NORMS_OF_ATTENTION,
            **shapes.ATTENTION,
            **shapes.attention_biases(config, by_default=True),
            **shapes.GATED_FEED_FORWARD,
        }
    ),
    settings=Settings(assumed={"hidden_act": "silu", "attention_out_bias": False, "mlp_bias": False}),
)


_JAIS = Architecture(
    hf_classes=("Jais2ForCausalLM",),
    gguf_name="jais2",
    hyperparameters=(*rows.DECODER, *rows.LAYER_NORM, *rows.ROTATED),
    tensors=RequiredTensors(model=shapes.decoder_with_bias, layer={**_WEIGHTS, **shapes.biases(_WEIGHTS)}),
    settings=Settings(assumed={"hidden_act": "relu2", "attention_bias": True, "mlp_bias": True}),
)

_XIELU = {f"xielu.{name}": f".mlp.act_fn.{name}" for name in ("alpha_n", "alpha_p", "beta", "eps")}

_APERTUS = Architecture(
    hf_classes=("ApertusForCausalLM",),
    gguf_name="apertus",
    hyperparameters=rows.DIVIDED_DECODER + rows.RMS_NORM + rows.VOCABULARY + rows.ROTATED,
    tensors=RequiredTensors(
        layer={**shapes.NORMED_ATTENTION, **shapes.HEAD_NORMS, **shapes.UNGATED_FEED_FORWARD},
        needs_output=True,
        generate=rows.frequency_divisors,
    ),
    names=TensorNames(ignored=tuple(_XIELU.values())),
    settings=Settings(
        defaults={"rope_theta": 12e6},
        assumed={"hidden_act": "xielu"},
    ),
    metadata_of_tensors=TensorMetadata(layer_numbers=_XIELU),
)

DENSE = (
    _PHI,
    _OLMO,
    _OLMO_2,
    _OLMO_3,
    _STARCODER,
    _COMMAND_R,
    _COMMAND_R7B,
    _STABLELM,
    _GLM,
    _INTERNLM,
    _SEED,
    _JAIS,
    _APERTUS,
)
