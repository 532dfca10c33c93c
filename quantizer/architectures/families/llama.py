"""Llama and its relatives: rotated by neighbours in llama.cpp, by halves in transformers, so q and k are reordered.

Their bodies turn texts into vectors, one of them (Llama Embed Nemotron) without a causal mask.
"""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures.architecture import Architecture, Hyperparameter
from quantizer.architectures.families.draft_heads import eagle3_variant
from quantizer.architectures.metadata_rows import (
    DECODER,
    EXPERTS,
    RMS_NORM,
    ROTATED,
    VOCABULARY,
    llama3_factors,
    number,
    rope_number,
)
from quantizer.architectures.shapes import (
    ATTENTION,
    EXPERT_FEED_FORWARD,
    FUSED_EXPERTS,
    GATED_FEED_FORWARD,
    NUMBERED_EXPERTS,
    PRE_NORMS,
    decoder,
)
from quantizer.convert.derived_tensors import unpermute_keys, unpermute_queries

# Falcon 3 and many others are this class too
_LLAMA = Architecture(
    hf_classes=("LlamaForCausalLM", "MistralForCausalLM", "InternLM3ForCausalLM"),
    gguf_name="llama",
    hyperparameters=DECODER + RMS_NORM + VOCABULARY + ROTATED,
    layer_tensors={**PRE_NORMS, **ATTENTION, **GATED_FEED_FORWARD},
    row_orders={"ATTN_Q": unpermute_queries, "ATTN_K": unpermute_keys},
    generate=llama3_factors,
    assumed={"hidden_act": lambda _config: "silu"},
)

_LLAMA_BODY = replace(
    _LLAMA,
    hf_classes=("LlamaModel", "MistralModel"),
    model_tensors=lambda config: {name: size for name, size in decoder(config).items() if name != "output.weight"},
    renames={r"^(?!model\.)": "model."},
)

LLAMA_LIKE = (
    replace(_LLAMA, variant=eagle3_variant),
    _LLAMA_BODY,
    replace(
        _LLAMA_BODY,
        hf_classes=("LlamaBidirectionalModel",),
        gguf_name="llama-embed",
        hyperparameters=(*_LLAMA.hyperparameters, Hyperparameter("attention.causal", "bool", lambda _config: False)),
    ),
    replace(
        _LLAMA,
        hf_classes=("MixtralForCausalLM",),
        hyperparameters=_LLAMA.hyperparameters + EXPERTS,
        layer_tensors={**PRE_NORMS, **ATTENTION, **EXPERT_FEED_FORWARD},
        stacks=NUMBERED_EXPERTS,
        splits=FUSED_EXPERTS,
    ),
    replace(
        _LLAMA,
        hf_classes=("GraniteForCausalLM",),
        gguf_name="granite",
        hyperparameters=(
            *_LLAMA.hyperparameters,
            Hyperparameter("attention.scale", "f32", number("attention_multiplier")),
            Hyperparameter("embedding_scale", "f32", number("embedding_multiplier")),
            Hyperparameter("residual_scale", "f32", number("residual_multiplier")),
            Hyperparameter("logit_scale", "f32", number("logits_scaling")),
        ),
        # without them llama.cpp would scale by the size of heads
        defaults=dict.fromkeys(
            ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"), 1.0
        ),
    ),
    replace(
        _LLAMA,
        hf_classes=("SmolLM3ForCausalLM",),
        gguf_name="smollm3",
        defaults={"tie_word_embeddings": True},
        assumed={
            "hidden_act": lambda _config: "silu",
            "use_sliding_window": lambda _config: False,
            # every fourth layer does without rotation
            "no_rope_layers": lambda config: [int(i % 4 != 3) for i in range(config.integer("num_hidden_layers"))],
        },
    ),
    replace(
        _LLAMA,
        hf_classes=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
        skipped_modules=("vision_tower.", "multi_modal_projector."),
        gguf_name="mistral3",
        hyperparameters=(
            *_LLAMA.hyperparameters,
            # Ministral's own; Mistral Small does without
            Hyperparameter("rope.scaling.yarn_log_multiplier", "f32", rope_number("mscale_all_dim")),
            Hyperparameter("attention.temperature_scale", "f32", rope_number("llama_4_scaling_beta")),
        ),
    ),
    # the language model of two that see, beside a tower
    replace(
        _LLAMA,
        hf_classes=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
        skipped_modules=("vision_model.", "connector."),
        renames={r"^model\.text_model\.": "model."},
    ),
    replace(
        _LLAMA,
        hf_classes=("ArceeForCausalLM",),
        gguf_name="arcee",
        layer_tensors={
            **PRE_NORMS,
            **ATTENTION,
            "ffn_up.weight": ("n_embd", "n_ff"),
            "ffn_down.weight": ("n_ff", "n_embd"),
        },
        assumed={
            "hidden_act": lambda _config: "relu2",
            "attention_bias": lambda _config: False,
            "mlp_bias": lambda _config: False,
        },
    ),
    # rotated by neighbours in transformers too
    replace(_LLAMA, hf_classes=("HeliumForCausalLM",), row_orders={}, defaults={"rope_theta": 1e5}),
)
