"""Write a tiny checkpoint of each architecture as transformers saves it, to compare conversions with.

    uv run --group train python tests/bench/models/tiny_checkpoints.py FOLDER [NAME ...]

Weights are seeded and random, norms and biases included, so that nothing is right by being one or zero. All of them get
the byte-level tokenizer of the tests; what they prove is the mapping of tensors and settings.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.quantizer.checkpoints import tokenizer, tokenizer_config
from tests.quantizer.tokenizer_files import roberta, unigram, word_pieces, xlm_roberta
from tests.quantizer.tokenizer_files import write as write_tokenizer

N_VOCAB = 272
_PLAIN: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 258,
    "eos_token_id": 260,
    "pad_token_id": 258,
}
_LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_SCALED = {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
    "original_max_position_embeddings": 192,
}
_TEMPERED = _YARN | {"mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1}
_WINDOWED = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
_LATENT = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1} | {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
_GROUPED = {"topk_method": "group_limited_greedy", "n_routed_experts": 8, "n_group": 4, "topk_group": 2}
_TEMPERED_LATENTS = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "mscale_all_dim": 0.7}
_TALL = {"rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}
_SINKING = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32, "sliding_window": 40} | {
    "hidden_size": 96,
    "rope_parameters": _YARN | {"beta_fast": 32.0, "beta_slow": 1.0},
}
_PUBLISHED = {"rope_type": "yarn", "rope_theta": 1.5e5, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0} | {
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
_LINEAR = {"head_dim": 64, "linear_key_head_dim": 32, "linear_value_head_dim": 32} | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
    | {"mrope_section": [6, 5, 5], "mrope_interleaved": True},
}
_DIVIDED = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [3, 3, 2]}}
_SSM_HEADS = {"num_heads": 8, "head_dim": 16, "intermediate_size": 128}
_HYBRID = {"attn_layer_period": 4, "attn_layer_offset": 2, "expert_layer_period": 2, "expert_layer_offset": 1} | {
    "num_experts": 4,
    "mamba_d_state": 8,
    "mamba_dt_rank": 6,
}
_CONVOLVED = {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "tie_word_embeddings": True}
_FEW = {"num_local_experts": 4, "num_experts_per_tok": 2}
_DENSE = {"num_local_experts": 0, "shared_intermediate_size": 80}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2} | {
    "mamba_d_conv": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
_ALL_ATTEND = {"layer_types": ["full_attention"] * 4, "position_embedding_type": "rope"}
_NEMOTRON = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "head_dim": 32}
_NEMOTRON_EXPERTS = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
    "n_routed_experts": 8,
} | {
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 80,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
}
_HALF_ROTATED = {
    "head_dim": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}
_STEPPED = {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 80, "head_dim": 32, "num_hidden_layers": 5}
_ALIKE = {"num_key_value_heads": 4, "num_experts_per_tok": 2}
_DEALT = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 2}
_GATED = {"head_dim": 32, "sliding_window": 40, "mup_enabled": True, "route_scale": 2.5, "num_dense_layers": 1}
_ELEVEN = {"num_kv_heads": 2, "ffn_hidden_size": 96, "tie_word_embeddings": False}
_SIDE_BY_SIDE = {key: value for key, value in _MAMBA.items() if key != "layer_types"} | {
    "mamba_d_ssm": 128,
    "mlp_multipliers": [0.5, 2.0],
    "ssm_multipliers": [0.5, 0.75, 1.5, 2.0, 1.25],
    "key_multiplier": 0.75,
    "attention_in_multiplier": 1.5,
    "attention_out_multiplier": 0.6,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.7,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.4,
}
_MIMO = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_key_value_heads": 1} | {
    "head_dim": 48,
    "v_head_dim": 32,
    "sliding_window": 40,
}
_ROTATED_APART = {
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 0.334}
        for kind, base in (("full_attention", 5e6), ("sliding_attention", 1e4))
    }
}
_FORGETTING = {"linear_head_dim": 16, "linear_num_heads": 4, "num_hidden_layers": 5, "num_local_experts": 4}
_GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 40}
# the widths and numbers of heads that follow from others
_UNSHARED: dict[str, Any] = {"intermediate_size": None, "num_key_value_heads": None}
_SERIAL = {"num_key_value_heads": None, "use_parallel_residual": False, "hidden_act": "gelu_fast", "rotary_pct": 1.0}
_MPT = _UNSHARED | {"max_seq_len": 256, "max_position_embeddings": None}
_CLIPPED = {"attn_config": {"clip_qkv": 1.5}}
_DBRX = {
    "d_model": 64,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 5e5},
    "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}

_ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1} | {
    "routed_scaling_factor": 1.5,
    "head_dim": 32,
}
_GROUPS = {"n_group": 2, "topk_group": 1}
_PARTED = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 2, 1]}
_FLASH = {key: value for key, value in _LATENT.items() if key != "first_k_dense_replace"} | {
    "q_lora_rank": 24,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
}
_UNROUTED = {key: value for key, value in _LATENT.items() if "expert" not in key and "dense" not in key}
_WINDOWS = {"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]}
_FULL = {"layer_types": ["full_attention"] * 4, "sliding_window": None}
_K_EXAONE = _WINDOWS | _EXPERTS | {"num_shared_experts": 1, "sliding_window": 40, "head_dim": 32}
_STRETCHED = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}
_HUNYUAN_EXPERTS = {"num_experts": 4, "moe_topk": [2] * 4, "head_dim": 32}
_ERNIE_EXPERTS = {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 48}
_TWICE_AS_LONG = {"max_position_embeddings": 512, "qk_rope_head_dim": 16} | {
    "rope_parameters": _LONG | {"original_max_position_embeddings": 256}
}
_EXPANDED = {key: value for key, value in _UNROUTED.items() if key != "n_shared_experts"} | {"q_lora_rank": 24}
_LAYERED = {"head_dim": 32, "sliding_window": 40, "vocab_size_per_layer_input": 256, "pad_token_id": 0}
_GEMMA_3N = _LAYERED | {"num_hidden_layers": 25, "num_kv_shared_layers": 5, "intermediate_size": 512}
_GEMMA_4 = (
    _LAYERED
    | {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": N_VOCAB}
    | {
        "global_head_dim": 64,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
)
_GEMMA_4_SHARED = _GEMMA_4 | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "final_logit_softcapping": 30.0}
_GEMMA_4_LARGE = (
    _GEMMA_4
    | {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True}
    | {
        "num_global_key_value_heads": 1,
    }
)
_GEMMA_4_UNIFIED = {key: value for key, value in _GEMMA_4_LARGE.items() if "per_layer" not in key}
_GEMMA_4_EXPERTS = (
    _GEMMA_4_LARGE
    | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2}
    | {
        "moe_intermediate_size": 48,
    }
)
# Granite with the scales that MiniCPM derives from the settings below
_AS_MINICPM = {"embedding_multiplier": 12.0, "residual_multiplier": 0.7, "logits_scaling": 2.0} | {
    "attention_multiplier": 0.25,
    "tie_word_embeddings": False,
}
_SHARED = {"shared_expert_intermediate_size": 80}
_FURTHER, _NO_FURTHER = {"mtp_num_hidden_layers": 1}, {"num_nextn_predict_layers": 0}
_FULL_FIRST = {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
_WINDOWED_EXPERTS = _EXPERTS | _FULL_FIRST | {"sliding_window": 40, "head_dim": 32}
_ONE_BASE = {kind: {"rope_type": "default", "rope_theta": 1e5} for kind in ("full_attention", "sliding_attention")}
_YARN_BASE = _YARN | {"rope_theta": 1e5}
_MELLUM = _WINDOWED_EXPERTS | {"rope_parameters": _ONE_BASE}
_COHERE = _WINDOWED_EXPERTS | {"intermediate_size": 48, "layer_norm_eps": 1e-5, "logit_scale": 0.25}
_DENSE_FIRST = {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "prefix_dense_intermediate_size": 96}
_LAGUNA = (
    _WINDOWED_EXPERTS
    | {"shared_expert_intermediate_size": 80, "moe_routed_scaling_factor": 2.5}
    | {
        "rope_parameters": {
            "full_attention": _YARN | {"partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 1.0},
        }
    }
)
_SWASH = _SCALED | {"sliding_window": 40, "layer_rope_theta": [0.0, 1e5, 1e5, 0.0]}
_HY_3 = _EXPERTS | {"head_dim": 32}
_TWO_DENSE = {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"], "first_k_dense_replace": 2}
# with few heads many tokens score nothing at all, and which of those are chosen is anybody's guess
_INDEXED = _LATENT | {"q_lora_rank": 24, "index_n_heads": 32, "index_head_dim": 64, "n_group": 1, "topk_group": 1}

_TIED = {"tie_word_embeddings": True}
_BIASED = {"attention_bias": True, "mlp_bias": True}
_HALF_WINDOWED = {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 2}

# name -> transformers' config class, and what it is told beyond `_PLAIN`
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"rope_parameters": _LLAMA_3}),
    "llama-yarn": ("LlamaConfig", {"rope_parameters": _YARN}),
    "llama-dynamic": ("LlamaConfig", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "mistral": ("MistralConfig", {"head_dim": 32, "sliding_window": None}),
    "mixtral": ("MixtralConfig", _MIXTRAL),
    "mixtral-fused": ("MixtralConfig", _MIXTRAL),
    "granite": ("GraniteConfig", _SCALED),
    "smollm3": ("SmolLM3Config", {}),
    "ministral3": ("Ministral3Config", {"head_dim": 32, "rope_parameters": _TEMPERED, "sliding_window": None}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-yarn": ("Qwen2Config", {"rope_parameters": _YARN, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "qwen2moe": ("Qwen2MoeConfig", _EXPERTS | {"shared_expert_intermediate_size": 80}),
    "qwen3moe": ("Qwen3MoeConfig", _EXPERTS | {"head_dim": 32, "norm_topk_prob": True}),
    "qwen2moe-fused": ("Qwen2MoeConfig", _EXPERTS | {"shared_expert_intermediate_size": 80}),
    "qwen3moe-fused": ("Qwen3MoeConfig", _EXPERTS | {"head_dim": 32, "norm_topk_prob": True}),
    "qwen35": ("Qwen3_5TextConfig", _LINEAR),
    "qwen35moe": ("Qwen3_5MoeTextConfig", _LINEAR | _EXPERTS | {"shared_expert_intermediate_size": 80}),
    "qwen35-seeing": ("Qwen3_5TextConfig", _LINEAR),
    "qwen35moe-seeing": ("Qwen3_5MoeTextConfig", _LINEAR | _EXPERTS | {"shared_expert_intermediate_size": 80}),
    "qwen35moe-fused": ("Qwen3_5MoeTextConfig", _LINEAR | _EXPERTS | {"shared_expert_intermediate_size": 80}),
    "qwen3next": ("Qwen3NextConfig", _LINEAR | _EXPERTS | {"shared_expert_intermediate_size": 80}),
    "qwen3next-fused": ("Qwen3NextConfig", _LINEAR | _EXPERTS | {"shared_expert_intermediate_size": 80}),
    "qwen35-predicting": ("Qwen3_5TextConfig", _LINEAR | _FURTHER),
    "qwen35moe-predicting": ("Qwen3_5MoeTextConfig", _LINEAR | _EXPERTS | _SHARED | _FURTHER),
    "qwen35moe-predicting-fused": ("Qwen3_5MoeTextConfig", _LINEAR | _EXPERTS | _SHARED | _FURTHER),
    "qwen3next-predicting": ("Qwen3NextConfig", _LINEAR | _EXPERTS | _SHARED | _FURTHER),
    "qwen2vl": ("Qwen2VLTextConfig", _DIVIDED | {"rms_norm_eps": 1e-6}),
    "qwen25vl": ("Qwen2_5_VLTextConfig", _DIVIDED | {"rms_norm_eps": 1e-6, "tie_word_embeddings": True}),
    "qwen3vl": ("Qwen3VLTextConfig", _DIVIDED | {"head_dim": 16}),
    "qwen3vlmoe": ("Qwen3VLMoeTextConfig", _DIVIDED | _EXPERTS | {"head_dim": 16}),
    "qwen3vlmoe-fused": ("Qwen3VLMoeTextConfig", _DIVIDED | _EXPERTS | {"head_dim": 16}),
    "gemma": ("GemmaConfig", {"head_dim": 32}),
    "gemma2": ("Gemma2Config", _GEMMA),
    "gemma3": ("Gemma3TextConfig", _GEMMA | {"num_hidden_layers": 7}),
    "gemma3-linear": ("Gemma3TextConfig", _GEMMA | {"num_hidden_layers": 7, "rope_parameters": _WINDOWED}),
    "gemma3-seeing": ("Gemma3TextConfig", _GEMMA),
    "gemma3n": ("Gemma3nTextConfig", _GEMMA_3N),
    "gemma4": ("Gemma4TextConfig", _GEMMA_4_SHARED),
    "gemma4-large": ("Gemma4TextConfig", _GEMMA_4_LARGE),
    "gemma4-experts": ("Gemma4TextConfig", _GEMMA_4_EXPERTS),
    "gemma3n-seeing": ("Gemma3nTextConfig", _GEMMA_3N),
    "gemma4-seeing": ("Gemma4TextConfig", _GEMMA_4_SHARED),
    "gemma4-shifted": ("Gemma4TextConfig", _GEMMA_4_LARGE),
    "gemma4-unified": ("Gemma4UnifiedTextConfig", _GEMMA_4_UNIFIED),
    "mistral3-seeing": ("MistralConfig", {"head_dim": 32, "sliding_window": None, "rms_norm_eps": 1e-5}),
    "mistral3-biased": ("MistralConfig", {"head_dim": 32, "sliding_window": None, "rms_norm_eps": 1e-5}),
    "idefics3": ("LlamaConfig", {"rope_parameters": _LLAMA_3}),
    "smolvlm": ("LlamaConfig", {"head_dim": 32, "tie_word_embeddings": True}),
    "internvl": ("Qwen2Config", {"rms_norm_eps": 1e-6}),
    "internvl-qwen3": ("Qwen3Config", {"head_dim": 32, "tie_word_embeddings": True}),
    "internvl-experts": ("Qwen3MoeConfig", _EXPERTS | {"head_dim": 32, "norm_topk_prob": True}),
    "glm4v": ("Glm4vTextConfig", {"rope_parameters": _PARTED}),
    "glm4v-experts": ("Glm4vMoeTextConfig", _ROUTED | {"head_dim": 16, "rope_parameters": _PARTED}),
    "glm4v-experts-fused": ("Glm4vMoeTextConfig", _ROUTED | _GROUPS | {"head_dim": 16, "rope_parameters": _PARTED}),
    "glm-ocr": ("GlmOcrTextConfig", {"head_dim": 32, "rope_parameters": _PARTED | {"mrope_section": [2, 3, 3]}}),
    "lighton-ocr": ("Qwen3Config", {"head_dim": 32, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}),
    "lighton-ocr-published": ("Qwen3Config", {"head_dim": 16, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}),
    "paddleocr": ("PaddleOCRTextConfig", _DIVIDED | {"head_dim": 16, "tie_word_embeddings": True}),
    "pixtral": ("MistralConfig", {"head_dim": 32, "sliding_window": None, "rms_norm_eps": 1e-6}),
    "lfm2-seeing": ("Lfm2Config", _CONVOLVED | {"block_auto_adjust_ff_dim": False}),
    "phi": ("Phi3Config", {"sliding_window": None}),
    "phi-long": ("Phi3Config", {"sliding_window": None, "rope_parameters": _LONG}),
    "phi-partial": ("Phi3Config", {"partial_rotary_factor": 0.75, "sliding_window": None, "tie_word_embeddings": True}),
    "granite-plain": ("GraniteConfig", {}),
    "minicpm": ("GraniteConfig", _AS_MINICPM),
    "minicpm-tied": ("GraniteConfig", _AS_MINICPM | {"tie_word_embeddings": True}),
    "olmo": ("OlmoConfig", {"clip_qkv": 0.5}),
    "olmo-plain": ("OlmoConfig", {"clip_qkv": None, "tie_word_embeddings": True}),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": ("Olmo3Config", {"sliding_window": 40}),
    "starcoder2": ("Starcoder2Config", {"sliding_window": None}),
    "command-r": ("CohereConfig", {"logit_scale": 0.25}),
    "cohere2": ("Cohere2Config", {"sliding_window": 40, "logit_scale": 0.25}),
    "deepseek3": ("DeepseekV3Config", _LATENT | {"q_lora_rank": 24, "n_group": 2, "topk_group": 1}),
    "deepseek3-yarn": ("DeepseekV3Config", _LATENT | {"q_lora_rank": 24, "n_group": 1, "topk_group": 1} | _TALL),
    "deepseek3-dynamic": (
        "DeepseekV3Config",
        _LATENT | {"q_lora_rank": 24, "n_group": 1, "topk_group": 1, "rope_parameters": _TEMPERED_LATENTS},
    ),
    "deepseek3-lite": ("DeepseekV3Config", _LATENT | {"q_lora_rank": None, "n_group": 1, "topk_group": 1}),
    "deepseek2": ("DeepseekV2Config", _LATENT | {"q_lora_rank": 24, "n_group": 1, "topk_group": 1} | _TALL),
    "deepseek2-grouped": ("DeepseekV2Config", _LATENT | {"q_lora_rank": 24} | _GROUPED),
    "deepseek2-lite": ("DeepseekV2Config", _LATENT | {"q_lora_rank": None, "num_hidden_layers": 27}),
    "deepseek3-fused": ("DeepseekV3Config", _LATENT | {"q_lora_rank": 24, "n_group": 2, "topk_group": 1}),
    "gpt-oss": ("GptOssConfig", _SINKING),
    "gpt-oss-published": ("GptOssConfig", _SINKING | {"head_dim": 64, "rope_parameters": _PUBLISHED}),
    "mamba": ("MambaConfig", {"state_size": 8, "time_step_rank": 6, "intermediate_size": 128}),
    "mamba2": ("Mamba2Config", _SSM_HEADS | {"state_size": 16, "n_groups": 2, "chunk_size": 16}),
    "jamba": ("JambaConfig", _HYBRID),
    "stablelm": ("StableLmConfig", {"use_qkv_bias": True}),
    "stablelm-parallel": ("StableLmConfig", {"use_parallel_residual": True, "qk_layernorm": True}),
    "glm4": ("Glm4Config", {"head_dim": 32, "attention_bias": True}),
    "lfm2": ("Lfm2Config", _CONVOLVED | {"block_auto_adjust_ff_dim": False}),
    "lfm2-untied": ("Lfm2Config", _CONVOLVED | {"block_multiple_of": 32, "tie_word_embeddings": False}),
    "lfm2moe": ("Lfm2MoeConfig", _CONVOLVED | _EXPERTS | {"num_dense_layers": 1}),
    "lfm2moe-fused": ("Lfm2MoeConfig", _CONVOLVED | _EXPERTS | {"num_dense_layers": 1}),
    "granitemoe": ("GraniteMoeConfig", _SCALED | _FEW | {"attention_bias": True}),
    "granitemoe-fused": ("GraniteMoeConfig", _SCALED | _FEW),
    "granitemoeshared": ("GraniteMoeSharedConfig", _SCALED | _FEW | {"shared_intermediate_size": 80}),
    "granitehybrid": ("GraniteMoeHybridConfig", _SCALED | _FEW | _MAMBA | {"shared_intermediate_size": 80}),
    "granitehybrid-rope": ("GraniteMoeHybridConfig", _SCALED | _FEW | _MAMBA | {"position_embedding_type": "rope"}),
    "granitehybrid-dense": ("GraniteMoeHybridConfig", _SCALED | _MAMBA | _DENSE),
    "granitehybrid-attention": ("GraniteMoeHybridConfig", _SCALED | _MAMBA | _DENSE | _ALL_ATTEND),
    "granitehybrid-fused": ("GraniteMoeHybridConfig", _SCALED | _FEW | _MAMBA | {"shared_intermediate_size": 80}),
    "granitehybrid-experts": ("GraniteMoeHybridConfig", _SCALED | _MAMBA | _FEW | _ALL_ATTEND),
    "nemotron": ("NemotronConfig", {"attention_bias": True, "mlp_bias": True}),
    "nemotron-h": ("NemotronHConfig", _NEMOTRON | {"layers_block_type": ["linear_attention", "mlp", "full_attention"]}),
    "nemotron-h-experts": ("NemotronHConfig", _NEMOTRON | _NEMOTRON_EXPERTS),
    "nemotron-h-latent": ("NemotronHConfig", _NEMOTRON | _NEMOTRON_EXPERTS | {"moe_latent_size": 32}),
    "nemotron-h-fused": ("NemotronHConfig", _NEMOTRON | _NEMOTRON_EXPERTS | {"norm_topk_prob": False}),
    "minimax-m2": ("MiniMaxM2Config", _FEW | _HALF_ROTATED),
    "minimax-m2-fused": ("MiniMaxM2Config", _FEW | {"head_dim": 32}),
    "llama4": ("Llama4TextConfig", _FEW | _STEPPED | {"rope_parameters": _LLAMA_3 | {"high_freq_factor": 1.0}}),
    "llama4-seeing": ("Llama4TextConfig", _FEW | _STEPPED | {"interleave_moe_layer_step": 1}),
    "olmoe": ("OlmoeConfig", _ALIKE | {"num_experts": 8}),
    "olmoe-fused": ("OlmoeConfig", _ALIKE | {"num_experts": 8}),
    "dots1": ("Dots1Config", _ALIKE | _DEALT | {"first_k_dense_replace": 1, "norm_topk_prob": True}),
    "dots1-fused": ("Dots1Config", _ALIKE | _DEALT | {"routed_scaling_factor": 2.5}),
    "afmoe": ("AfmoeConfig", _EXPERTS | _GATED | {"num_shared_experts": 1}),
    "afmoe-fused": ("AfmoeConfig", _EXPERTS | _GATED | {"num_shared_experts": 2, "num_hidden_layers": 5}),
    "mimo2": ("MiMoV2FlashConfig", _ROTATED_APART | _MIMO),
    "mimo2-fused": ("MiMoV2FlashConfig", _ROTATED_APART | _MIMO | {"num_hidden_layers": 7}),
    "kimi-linear": ("KimiLinearConfig", _LATENT | _FORGETTING),
    "falcon-7b": ("FalconConfig", {"multi_query": True}),
    "falcon-40b": ("FalconConfig", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-11b": ("FalconConfig", {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1} | _ELEVEN),
    "falcon-h1": ("FalconH1Config", _SIDE_BY_SIDE),
    "falcon-h1-normed": ("FalconH1Config", _SIDE_BY_SIDE | {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "falcon-mamba": ("FalconMambaConfig", {"state_size": 8, "time_step_rank": 6, "intermediate_size": 128}),
    "glm": ("GlmConfig", {"head_dim": 16}),
    "glm-yarn": ("GlmConfig", {"head_dim": 16, "attention_bias": False, "rope_parameters": _YARN}),
    "glm4moe": ("Glm4MoeConfig", _ROUTED | _GROUPS | {"attention_bias": True, "use_qk_norm": True} | _NO_FURTHER),
    "glm4moe-fused": ("Glm4MoeConfig", _ROUTED | {"first_k_dense_replace": 2, "n_shared_experts": 2} | _NO_FURTHER),
    "glm4moe-predicting": ("Glm4MoeConfig", _ROUTED | {"attention_bias": True, "use_qk_norm": True}),
    "solar-open": ("SolarOpenConfig", _ROUTED | {"rope_parameters": _YARN}),
    "glm4moe-lite": ("Glm4MoeLiteConfig", _FLASH | {"routed_scaling_factor": 1.8}),
    "glm4moe-lite-fused": ("Glm4MoeLiteConfig", _FLASH | _GROUPS),
    "youtu": ("YoutuConfig", _UNROUTED | {"q_lora_rank": 24, "pad_token_id": None}),
    "seed-oss": ("SeedOssConfig", {"head_dim": 32}),
    "arcee": ("ArceeConfig", {"rope_parameters": _YARN}),
    "arcee-tied": ("ArceeConfig", {"head_dim": 32, "rope_parameters": _LLAMA_3, "tie_word_embeddings": True}),
    "helium": ("HeliumConfig", {"head_dim": 16}),
    "exaone4": ("Exaone4Config", _FULL | {"rope_parameters": _LLAMA_3, "tie_word_embeddings": True}),
    "exaone4-yarn": ("Exaone4Config", _FULL | {"rope_parameters": _YARN | {"beta_fast": 16.0, "beta_slow": 2.0}}),
    "exaone4-windows": ("Exaone4Config", {"sliding_window": 40, "num_hidden_layers": 64, "hidden_size": 32}),
    "exaone-moe": ("ExaoneMoeConfig", _K_EXAONE),
    "exaone-moe-fused": ("ExaoneMoeConfig", _K_EXAONE | _GROUPS | {"num_shared_experts": 2}),
    "hunyuan": ("HunYuanDenseV1Config", {"head_dim": 32, "rope_parameters": _STRETCHED}),
    "hunyuan-plain": ("HunYuanDenseV1Config", {"head_dim": 16, "tie_word_embeddings": True}),
    "hunyuan-moe": ("HunYuanMoEV1Config", _HUNYUAN_EXPERTS | {"rope_parameters": _STRETCHED}),
    "hunyuan-moe-fused": ("HunYuanMoEV1Config", _HUNYUAN_EXPERTS | {"moe_topk": 2}),
    "ernie45": ("Ernie4_5Config", {"head_dim": 32}),
    "ernie45-untied": ("Ernie4_5Config", {"head_dim": 16, "tie_word_embeddings": False}),
    "ernie45-moe": ("Ernie4_5_MoeConfig", _ERNIE_EXPERTS),
    "ernie45-moe-fused": ("Ernie4_5_MoeConfig", _ERNIE_EXPERTS | {"moe_num_shared_experts": 0}),
    "minicpm3": ("MiniCPM3Config", _EXPANDED),
    "minicpm3-long": ("MiniCPM3Config", _EXPANDED | _TWICE_AS_LONG),
    "apertus": ("ApertusConfig", {"rope_parameters": _LLAMA_3}),
    "apertus-plain": ("ApertusConfig", {"rope_parameters": {"rope_type": "default", "rope_theta": 12e6}}),
    "jais2": ("Jais2Config", {"head_dim": 16}),
    "gpt2": ("GPT2Config", _UNSHARED),
    "gpt2-narrow": ("GPT2Config", _UNSHARED | {"n_inner": 96, "tie_word_embeddings": False}),
    "starcoder": ("GPTBigCodeConfig", _UNSHARED),
    "gptneox": ("GPTNeoXConfig", {"num_key_value_heads": None}),
    "gptneox-serial": ("GPTNeoXConfig", _SERIAL),
    "phi2": ("PhiConfig", {"num_key_value_heads": 4}),
    "phi2-shared": ("PhiConfig", {"partial_rotary_factor": 0.75, "hidden_size": 128}),
    "bloom": ("BloomConfig", _UNSHARED),
    "bloom-uneven": ("BloomConfig", _UNSHARED | {"hidden_size": 96, "num_attention_heads": 6}),
    "mpt": ("MptConfig", _MPT),
    "mpt-clipped": ("MptConfig", _MPT | {"hidden_size": 96, "num_attention_heads": 6} | _CLIPPED),
    "dbrx": ("DbrxConfig", _UNSHARED | _DBRX),
    "granite-swa": ("GraniteSWAConfig", _SWASH | _FULL_FIRST | {"tie_word_embeddings": False}),
    "granite-swa-rope": ("GraniteSWAConfig", _SCALED | {"num_hidden_layers": 5, "sliding_window": 40}),
    "granitemoe-swa": ("GraniteMoeSWAConfig", _SWASH | _FEW | {"shared_intermediate_size": 80}),
    "granitemoe-swa-fused": ("GraniteMoeSWAConfig", _SCALED | _FEW | {"sliding_window": 40}),
    "hy3": ("HYV3Config", _HY_3 | {"num_shared_experts": 2, "router_scaling_factor": 1.5}),
    "hy3-fused": ("HYV3Config", _HY_3 | _TWO_DENSE),
    "deepseek32": ("DeepseekV32Config", _INDEXED | {"index_topk": 40, "n_group": 2}),
    "deepseek32-yarn": ("DeepseekV32Config", _INDEXED | {"index_topk": 256} | _TALL),
    "deepseek32-fused": ("DeepseekV32Config", _INDEXED | {"index_topk": 40, "index_n_heads": 24}),
    "glm5": ("GlmMoeDsaConfig", _INDEXED | {"index_topk": 40}),
    "glm5-yarn": (
        "GlmMoeDsaConfig",
        _INDEXED | {"index_topk": 40, "rope_parameters": _YARN | {"mscale": 0.7, "mscale_all_dim": 0.6}},
    ),
    "glm5-shared-fused": ("GlmMoeDsaConfig", _INDEXED | {"index_topk": 40, "index_topk_freq": 2, "index_n_heads": 24}),
    "mellum": ("MellumConfig", _MELLUM),
    "mellum-yarn-fused": ("MellumConfig", _MELLUM | {"rope_parameters": _ONE_BASE | {"full_attention": _YARN_BASE}}),
    "cohere2moe": ("Cohere2MoeConfig", _COHERE | {"num_shared_experts": 2, "expert_selection_fn": "sigmoid"}),
    "cohere2moe-dense": ("Cohere2MoeConfig", _COHERE | _DENSE_FIRST | {"rms_norm_eps": 1e-5}),
    "cohere2moe-fused": ("Cohere2MoeConfig", _COHERE | {"tie_word_embeddings": False}),
    "laguna": ("LagunaConfig", _LAGUNA | {"num_attention_heads_per_layer": [4, 6, 6, 4]}),
    "laguna-fused": ("LagunaConfig", _LAGUNA | {"gating": "per-element"} | _FULL | {"sliding_window": 40}),
    # settings that were refused once
    "gemma2-pattern": ("Gemma2Config", _GEMMA | _FULL_FIRST | {"query_pre_attn_scalar": 20}),
    "gemma3-pattern": ("Gemma3TextConfig", _GEMMA | _FULL_FIRST | {"query_pre_attn_scalar": 20}),
    "gemma3-untied": ("Gemma3TextConfig", _GEMMA | {"tie_word_embeddings": False}),
    "cohere2-pattern": ("Cohere2Config", _FULL_FIRST | {"sliding_window": 40, "logit_scale": 0.25}),
    "gpt-oss-tied": ("GptOssConfig", _SINKING | _FULL_FIRST | _TIED),
    "apertus-biased": ("ApertusConfig", _TIED | {"attention_bias": True, "rope_parameters": _LLAMA_3}),
    "gptneox-tied": ("GPTNeoXConfig", _TIED | {"num_key_value_heads": None}),
    "phi2-tied": ("PhiConfig", _TIED | {"num_key_value_heads": 4}),
    "nemotron-tied": ("NemotronConfig", _TIED),
    "minimax-m2-tied": ("MiniMaxM2Config", _FEW | _HALF_ROTATED | _TIED),
    "exaone-moe-tied": ("ExaoneMoeConfig", _K_EXAONE | _TIED),
    "mimo2-tied": ("MiMoV2FlashConfig", _ROTATED_APART | _MIMO | _GROUPS | _TIED),
    "olmo2-tied": ("Olmo2Config", _TIED),
    "olmo3-tied": ("Olmo3Config", _TIED | {"sliding_window": 40}),
    "stablelm-tied": ("StableLmConfig", _TIED | {"use_qkv_bias": True}),
    "qwen2moe-tied": ("Qwen2MoeConfig", _EXPERTS | _SHARED | _TIED),
    "lfm2moe-untied": ("Lfm2MoeConfig", _CONVOLVED | _EXPERTS | {"num_dense_layers": 1, "tie_word_embeddings": False}),
    "olmoe-tied": ("OlmoeConfig", _ALIKE | _TIED | {"num_experts": 8}),
    "dots1-tied": ("Dots1Config", _ALIKE | _DEALT | _GROUPS | _TIED),
    "nemotron-h-biased": (
        "NemotronHConfig",
        _NEMOTRON | _BIASED | {"layers_block_type": ["linear_attention", "mlp", "full_attention"]},
    ),
    "falcon-h1-biased": ("FalconH1Config", _SIDE_BY_SIDE | {"mlp_bias": True}),
    "minicpm-biased": ("GraniteConfig", _AS_MINICPM | {"attention_bias": True}),
    "qwen2-window": ("Qwen2Config", _HALF_WINDOWED),
    "qwen3moe-window": ("Qwen3MoeConfig", _HALF_WINDOWED | _EXPERTS | {"head_dim": 32, "norm_topk_prob": True}),
    "qwen2audio": ("Qwen2Config", {}),
    "audioflamingo3": ("Qwen2Config", {}),
    "qwen3asr": ("Qwen3Config", {"head_dim": 32}),
    "qwen25omni": ("Qwen2_5OmniTextConfig", _DIVIDED | {"rms_norm_eps": 1e-6}),
    "qwen25omni-published": ("Qwen2_5OmniTextConfig", _DIVIDED | {"rms_norm_eps": 1e-6}),
    "qwen3omni": ("Qwen3OmniMoeTextConfig", _DIVIDED | _EXPERTS | {"head_dim": 16}),
    "qwen3omni-whole": ("Qwen3OmniMoeTextConfig", _DIVIDED | _EXPERTS | {"head_dim": 16}),
    "voxtral": ("LlamaConfig", {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e8}}),
}
# those that were published before transformers had their class, under another name
_PUBLISHED_AS = {
    "mpt-clipped": "MPTForCausalLM",
    "llama-both-sides": "LlamaBidirectionalModel",
    "qwen25omni-published": "Qwen2_5OmniModel",
    "lighton-ocr-published": "LightOnOCRForConditionalGeneration",
} | dict.fromkeys(("minicpm", "minicpm-tied", "minicpm-biased"), "MiniCPMForCausalLM")
# what their config.json has beside the settings of transformers' class
_PUBLISHED_SETTINGS = {"MiniCPMForCausalLM": {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 32}}
# those whose experts are saved in one tensor for each layer
_FUSED = "-fused"
# those with a layer that predicts one token further; what it has outside of a usual layer, by whether it is GLM's
_PREDICTING = "-predicting"
_PREDICTION_NAMES = {
    False: ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
    True: ("eh_proj", "enorm", "hnorm", "shared_head.norm"),
}
# those in which an activation that llama.cpp rounds would grow from layer to layer: what each layer adds is small
_CALM = ("gemma3n", "gemma4")
_CALMED = 0.2
# what the matrices of Gemma 4's tower take and give at most
_BOUND = 1.5
_DISTILLED = {"pad_token_id": 0, "hidden_dim": 96, "intermediate_size": None}


def _byte_pairs() -> tuple[dict[str, Any], dict[str, Any]]:
    return tokenizer(), tokenizer_config()


def _answers() -> tuple[dict[str, Any], dict[str, Any]]:
    """The tokens of bytes, and those of the words that a ranker answers."""
    kept = tokenizer()
    first = max(token["id"] for token in kept["added_tokens"]) + 1
    word = {"special": False, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    kept["added_tokens"] += [word | {"id": first + i, "content": text} for i, text in enumerate(("no", "yes"))]
    return kept, tokenizer_config()


_ROBERTA = {"max_position_embeddings": 258, "type_vocab_size": 1, "pad_token_id": 1}
_MODERN = {"local_attention": 16, "pad_token_id": 1, "sep_token_id": 2, "cls_token_id": 0}
# a head of another width than the embedding divided by their number
_T5 = {"d_ff": 96, "intermediate_size": None, "d_kv": 32, "decoder_start_token_id": 0, "num_decoder_layers": 3} | {
    "max_position_embeddings": None,
    "pad_token_id": 0,
}
_UNTIED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_MEAN_RANKER = {"num_labels": 2, "classifier_pooling": "mean"}
_RANKS_BY_ANSWER = {"num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024} | {
    "tie_word_embeddings": True,
}
_MISTRAL_BODY = {"num_key_value_heads": 2, "head_dim": 32, "sliding_window": None}
_BOTH_SIDES = {"num_key_value_heads": 2, "mask_token_id": 259, "bos_token_id": 258, "eos_token_id": 260}
_GEMMA_EMBEDDING = _GEMMA | {"use_bidirectional_attention": True, "num_hidden_layers": 10, "num_key_value_heads": 2}
# the widths between the linear modules behind the pooling of these
_DENSE_WIDTHS = {"gemma-embedding": (64, 96, 64)}
# name -> transformers' class, what its config is told beyond `_PLAIN`, the tokenizer, how a text's vectors are pooled
ENCODERS: dict[str, tuple[str, dict[str, Any], Callable[[], tuple[dict[str, Any], dict[str, Any]]], str]] = {
    "bert": ("BertModel", {"pad_token_id": 0}, word_pieces, "cls"),
    "bert-masked": ("BertForMaskedLM", {"pad_token_id": 0}, word_pieces, "mean"),
    "distilbert": ("DistilBertModel", _DISTILLED, word_pieces, "mean"),
    "distilbert-masked": ("DistilBertForMaskedLM", _DISTILLED, word_pieces, "cls"),
    "roberta": ("RobertaModel", _ROBERTA, roberta, "mean"),
    "roberta-masked": ("RobertaForMaskedLM", _ROBERTA, roberta, "mean"),
    "roberta-ranker": ("RobertaForSequenceClassification", _ROBERTA | {"num_labels": 2}, roberta, ""),
    "xlm-roberta": ("XLMRobertaModel", _ROBERTA, xlm_roberta, "cls"),
    "xlm-roberta-masked": ("XLMRobertaForMaskedLM", _ROBERTA, xlm_roberta, "mean"),
    "xlm-roberta-ranker": ("XLMRobertaForSequenceClassification", _ROBERTA | {"num_labels": 1}, xlm_roberta, ""),
    "nomic-bert": ("NomicBertModel", {"pad_token_id": 0}, word_pieces, "mean"),
    "camembert": ("CamembertModel", _ROBERTA, xlm_roberta, "mean"),
    "camembert-masked": ("CamembertForMaskedLM", _ROBERTA, xlm_roberta, "cls"),
    "camembert-ranker": ("CamembertForSequenceClassification", _ROBERTA | {"num_labels": 1}, xlm_roberta, ""),
    "modernbert": ("ModernBertModel", _MODERN, roberta, "cls"),
    "modernbert-masked": ("ModernBertForMaskedLM", _MODERN | {"hidden_activation": "silu"}, roberta, "mean"),
    "modernbert-ranker": ("ModernBertForSequenceClassification", _MODERN | {"num_labels": 1}, roberta, ""),
    "modernbert-mean": ("ModernBertForSequenceClassification", _MODERN | _MEAN_RANKER, roberta, ""),
    "t5": ("T5ForConditionalGeneration", _T5, unigram, "mean"),
    "t5-gated": ("T5ForConditionalGeneration", _T5 | _UNTIED, unigram, "mean"),
    "t5-encoder": ("T5EncoderModel", _T5, unigram, "mean"),
    "mt5": ("MT5ForConditionalGeneration", _T5 | _UNTIED, unigram, "mean"),
    "mt5-encoder": ("MT5EncoderModel", _T5 | {"feed_forward_proj": "gated-gelu"}, unigram, "mean"),
    "umt5": ("UMT5ForConditionalGeneration", _T5 | {"feed_forward_proj": "gated-gelu"}, unigram, "cls"),
    "umt5-encoder": ("UMT5EncoderModel", _T5 | {"feed_forward_proj": "gated-gelu"}, unigram, "mean"),
    "eurobert": ("EuroBertModel", {"num_key_value_heads": 2}, roberta, "mean"),
    "eurobert-masked": ("EuroBertForMaskedLM", {}, roberta, "lasttoken"),
    "gemma-embedding": ("Gemma3TextModel", _GEMMA_EMBEDDING, _byte_pairs, "mean"),
    "gemma-embedding-plain": ("Gemma3TextModel", _GEMMA_EMBEDDING, _byte_pairs, "mean"),
    "llama-body": ("LlamaModel", {"num_key_value_heads": 2}, _byte_pairs, "lasttoken"),
    "mistral-body": ("MistralModel", _MISTRAL_BODY, _byte_pairs, "lasttoken"),
    "llama-both-sides": ("EuroBertModel", _BOTH_SIDES, _byte_pairs, "mean"),
    "qwen3-reranker": ("Qwen3ForCausalLM", _RANKS_BY_ANSWER, _answers, ""),
    "qwen3-reranker-untied": ("Qwen3ForCausalLM", _RANKS_BY_ANSWER | {"tie_word_embeddings": False}, _answers, ""),
    "qwen2-body": ("Qwen2Model", {"num_key_value_heads": 2}, _byte_pairs, "lasttoken"),
    "qwen3-body": ("Qwen3Model", {"num_key_value_heads": 2, "head_dim": 32}, _byte_pairs, "lasttoken"),
}
# those that are the language model of one that also sees or hears
SEEING = {"gemma3-seeing": "Gemma3Config", "mistral3-seeing": "Mistral3Config"} | {
    "mistral3-biased": "Mistral3Config",
    "gemma3n-seeing": "Gemma3nConfig",
    "gemma4-seeing": "Gemma4Config",
    "gemma4-shifted": "Gemma4Config",
    "gemma4-unified": "Gemma4UnifiedConfig",
    "qwen35-seeing": "Qwen3_5Config",
    "qwen35moe-seeing": "Qwen3_5MoeConfig",
    "idefics3": "Idefics3Config",
    "smolvlm": "SmolVLMConfig",
    "llama4-seeing": "Llama4Config",
    "qwen2vl": "Qwen2VLConfig",
    "qwen25vl": "Qwen2_5_VLConfig",
    "qwen3vl": "Qwen3VLConfig",
    "qwen3vlmoe": "Qwen3VLMoeConfig",
    "qwen3vlmoe-fused": "Qwen3VLMoeConfig",
    **dict.fromkeys(("internvl", "internvl-qwen3", "internvl-experts"), "InternVLConfig"),
    "lfm2-seeing": "Lfm2VlConfig",
    "qwen2audio": "Qwen2AudioConfig",
    "audioflamingo3": "AudioFlamingo3Config",
    "qwen3asr": "Qwen3ASRConfig",
    "qwen25omni": "Qwen2_5OmniThinkerConfig",
    "qwen25omni-published": "Qwen2_5OmniThinkerConfig",
    "qwen3omni": "Qwen3OmniMoeThinkerConfig",
    "qwen3omni-whole": "Qwen3OmniMoeThinkerConfig",
    "voxtral": "VoxtralConfig",
    "pixtral": "LlavaConfig",
    "paddleocr": "PaddleOCRVLConfig",
    **dict.fromkeys(("lighton-ocr", "lighton-ocr-published"), "LightOnOcrConfig"),
    "glm4v": "Glm4vConfig",
    "glm-ocr": "GlmOcrConfig",
    **dict.fromkeys(("glm4v-experts", "glm4v-experts-fused"), "Glm4vMoeConfig"),
}
_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2} | {
    "image_size": 56,
    "patch_size": 14,
    "head_dim": 16,
}
_QWEN_VISION = {"hidden_size": 32, "intermediate_size": 48, "depth": 4, "num_heads": 2} | {
    "patch_size": 14,
    "num_position_embeddings": 16,
    "out_hidden_size": _PLAIN["hidden_size"],
}
_GEMMA_4_VISION = _VISION | {"num_key_value_heads": 2, "position_embedding_size": 48, "num_hidden_layers": 4}
# the map of gguf has as many convolutions as layers
_WHISPER = {"d_model": 32, "encoder_ffn_dim": 128, "encoder_layers": 4, "encoder_attention_heads": 2}
_SECONDS = {"num_mel_bins": 128, "downsample_hidden_size": 8, "output_dim": _PLAIN["hidden_size"]}
# what the towers of these are told, the vision first; Gemma 3n's needs timm
_TOWERS: dict[str, tuple[dict[str, Any], ...]] = {
    "qwen2vl": (_QWEN_VISION | {"embed_dim": 32, "hidden_size": _PLAIN["hidden_size"]},),
    "qwen25vl": (_QWEN_VISION | {"fullatt_block_indexes": [1, 3]},),
    "qwen3vlmoe": (_QWEN_VISION | {"deepstack_visual_indexes": [1], "patch_size": 16},),
    "qwen3vl": (_QWEN_VISION | {"deepstack_visual_indexes": [0, 2]},),
    **dict.fromkeys(("qwen2audio", "audioflamingo3", "voxtral"), ({}, _WHISPER | {"num_mel_bins": 128})),
    "qwen3asr": ({}, _WHISPER | _SECONDS),
    "qwen25omni": (_QWEN_VISION | {"fullatt_block_indexes": [1, 3]}, _WHISPER | {"output_dim": _PLAIN["hidden_size"]}),
    "qwen3omni": (_QWEN_VISION | {"deepstack_visual_indexes": [0, 2]}, _WHISPER | _SECONDS),
    "qwen": (_QWEN_VISION,),
    "pixtral": (_VISION | {"model_type": "pixtral", "hidden_act": "silu", "num_hidden_layers": 3},),
    "paddleocr": (_VISION | {"num_hidden_layers": 4},),
    "lighton": (_VISION | {"model_type": "pixtral", "hidden_act": "silu", "num_hidden_layers": 3, "image_size": 168},),
    "glm": (_QWEN_VISION | {"image_size": 56, "hidden_act": "silu"},),
    "internvl-qwen3": (_VISION | {"attention_bias": True},),
    # as many layers as the numbers that follow the tower: llama.cpp's converter knows no others
    "internvl": (_VISION | {"num_hidden_layers": 4},),
    "lfm2": (_VISION | {"num_hidden_layers": 4, "patch_size": 16, "num_patches": 256, "vision_use_head": False},),
    "gemma3n": (
        {"hidden_size": 32, "architecture": "resnet18"},
        {"hidden_size": 32, "conf_num_hidden_layers": 1, "conf_num_attention_heads": 2},
    ),
    "mistral3-seeing": (_VISION | {"model_type": "pixtral", "hidden_act": "silu", "num_hidden_layers": 3},),
    "mistral3-biased": (_VISION | {"model_type": "pixtral", "num_hidden_layers": 3},),
    "gemma4-shifted": (_GEMMA_4_VISION | {"standardize": True},),
    "gemma4-seeing": (
        _GEMMA_4_VISION | {"use_clipped_linears": True},
        {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 32}
        | {"subsampling_conv_channels": [8, 8]},
    ),
    "gemma4-unified": (
        {"mm_embed_dim": 64, "mm_posemb_size": 16, "output_proj_dims": 64, "patch_size": 4},
        {"audio_embed_dim": 64},
    ),
}
# those of which that is the part that thinks, in a whole that could speak
_THINKING = {"qwen3omni-whole": "Qwen3OmniMoeConfig"} | dict.fromkeys(
    ("qwen25omni", "qwen25omni-published"), "Qwen2_5OmniConfig"
)
# name -> what the config of the whole is told beside its parts
_WHOLE = {"gemma3-seeing": {"mm_tokens_per_image": 4}, "smolvlm": {"scale_factor": 4}} | {
    "mistral3-biased": {"multimodal_projector_bias": True, "spatial_merge_size": 1},
    "internvl": {"tie_word_embeddings": False},
    "internvl-experts": {"tie_word_embeddings": False},
    "lfm2-seeing": {"projector_hidden_size": 96},
    "qwen3asr": {"pad_token_id": 258, "eos_token_id": 260},
    "pixtral": {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
}
_HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 1 / 255} | {
    "do_rescale": True,
    "do_normalize": True,
}
_COLOURS = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28], "rescale_factor": 1 / 255}
_AS_THEY_ARE = {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0], "rescale_factor": 1 / 255} | {
    "do_rescale": True,
    "do_normalize": False,
}
_PLAINLY = {"do_rescale": True, "do_normalize": True}
_MERGED = _COLOURS | _PLAINLY | {"merge_size": 2, "temporal_patch_size": 2}
_QWEN_PICTURE = (_MERGED, ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>"))
_BANDS = {"feature_size": 128, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400, "chunk_length": 30}
_QWEN_SOUND = ("<|audio_start|>", "<|audio_end|>")
_IDEFICS_MARKERS = ("\n\n", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<image>")
# of those whose tower is converted too: preprocessor_config.json, and the tokens that libmtmd puts around pictures and
# sounds
_PICTURES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gemma3-seeing": (_HALVES | {"size": {"height": 56, "width": 56}}, ("<start_of_image>", "<end_of_image>")),
    "idefics3": (_HALVES | {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 56}}, _IDEFICS_MARKERS),
    **dict.fromkeys(
        ("mistral3-seeing", "mistral3-biased", "pixtral"),
        (_COLOURS | {"do_rescale": True, "do_normalize": True}, ("[IMG]", "[IMG_BREAK]", "[IMG_END]")),
    ),
    **dict.fromkeys(("qwen2vl", "qwen25vl", "qwen3vl", "qwen3vlmoe", "qwen3vlmoe-fused"), _QWEN_PICTURE),
    **dict.fromkeys(("qwen35-seeing", "qwen35moe-seeing"), _QWEN_PICTURE),
    "smolvlm": (_HALVES | {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 56}}, _IDEFICS_MARKERS),
    **dict.fromkeys(("internvl", "internvl-qwen3", "internvl-experts"), (_COLOURS | _PLAINLY, ("<img>", "</img>"))),
    **dict.fromkeys(("gemma4-seeing", "gemma4-shifted"), (_AS_THEY_ARE, ("<|image>", "<image|>"))),
    **dict.fromkeys(
        ("glm4v", "glm4v-experts", "glm4v-experts-fused", "glm-ocr"),
        (_MERGED, ("<|begin_of_image|>", "<|end_of_image|>")),
    ),
    **dict.fromkeys(
        ("lighton-ocr", "lighton-ocr-published"), (_COLOURS | _PLAINLY | {"size": {"longest_edge": 168}}, ())
    ),
    "paddleocr": (_HALVES | {"min_pixels": 3136, "max_pixels": 65536}, ("<|IMAGE_START|>", "<|IMAGE_END|>")),
    "lfm2-seeing": (_HALVES, ("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", "<|img_row_1_col_1|>")),
    "qwen2audio": (_BANDS, ("<|audio_bos|>", "<|audio_eos|>")),
    "audioflamingo3": (_BANDS, ("<sound>",)),
    "qwen3asr": (_BANDS, _QWEN_SOUND),
    **dict.fromkeys(("qwen25omni", "qwen25omni-published"), _QWEN_PICTURE),
    **dict.fromkeys(("qwen3omni", "qwen3omni-whole"), (_MERGED | _BANDS, (*_QWEN_PICTURE[1], *_QWEN_SOUND))),
}
_SECTIONS = ("vision_config", "audio_config")
_MODULES = {"": "Transformer", "1_Pooling": "Pooling", "4_Normalize": "Normalize"}


def write(name: str, folder: Path) -> None:
    """Write the checkpoint called `name` into `folder`."""
    if name in ENCODERS:
        write_encoder(name, folder)
        return
    config_name, changes = CHECKPOINTS[name]
    # a copy: transformers adds to the rope settings that it is given
    config = getattr(transformers, config_name)(**deepcopy(_PLAIN | changes))
    if name in SEEING:
        towers = next((towers for start, towers in _TOWERS.items() if name.startswith(start)), (_VISION,))
        named = {name: tower for name, tower in zip(_SECTIONS, towers, strict=False) if tower}
        config = getattr(transformers, SEEING[name])(text_config=config, **named, **_WHOLE.get(name, {}))
    if name in _THINKING:
        config = getattr(transformers, _THINKING[name])(thinker_config=config.to_dict(), enable_audio_output=False)
    _save(lambda: auto_class(config).from_config(config, dtype=torch.float32), folder)
    if name.startswith("qwen25omni"):
        torch.save({}, folder / "spk_dict.pt")  # its voices, which transformers wants even where it does not speak
    _set_published_class(name, folder)
    if _PREDICTING in name:
        _add_prediction_layer(folder / "model.safetensors")
    if name == "qwen3vlmoe":
        _turn_experts(folder / "model.safetensors")
    processor, markers = _PICTURES.get(name, ({}, ()))
    if processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "tokenizer.json").write_text(json.dumps(_marked(tokenizer(), markers)))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config()))


def open_model(checkpoint: Path) -> Any:
    """The model in a folder, in float32; of one that could speak the part that thinks."""
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    model = auto_class(config).from_pretrained(checkpoint, dtype=torch.float32)
    if type(model) is transformers.Llama4ForConditionalGeneration:  # fails without a picture (transformers 5.24)
        return model.language_model
    return getattr(model, "thinker", model)


def auto_class(config: Any) -> Any:
    """The class of transformers that makes a model of this config: of text, of several kinds, or of sounds to text."""
    kinds = (
        transformers.AutoModelForSeq2SeqLM,
        transformers.AutoModelForMultimodalLM,
        transformers.AutoModelForCausalLM,
    )
    return next(kind for kind in kinds if type(config) in kind._model_mapping)


def _marked(tokens: dict[str, Any], markers: tuple[str, ...]) -> dict[str, Any]:
    """The tokenizer with more tokens, which are not text."""
    added = tokens["added_tokens"]
    first = 1 + added[-1]["id"]
    more = [added[-1] | {"id": first + i, "content": marker} for i, marker in enumerate(markers)]
    return tokens | {"added_tokens": [*added, *more]}


def _set_published_class(name: str, folder: Path) -> None:
    if name in _PUBLISHED_AS:
        saved = json.loads((folder / "config.json").read_text())
        own = {"architectures": [_PUBLISHED_AS[name]]} | _PUBLISHED_SETTINGS.get(_PUBLISHED_AS[name], {})
        (folder / "config.json").write_text(json.dumps(saved | own))


def _add_prediction_layer(path: Path) -> None:
    """Add a layer that predicts one token further, which transformers drops; its shapes are those of the last layer."""
    tensors, random = load_file(path), torch.Generator().manual_seed(11)
    n_layers, width = _PLAIN["num_hidden_layers"], _PLAIN["hidden_size"]
    last, is_glm = f"model.layers.{n_layers - 1}.", path.parent.name.startswith("glm")
    of_layer = f"model.layers.{n_layers}." if is_glm else "mtp.layers.0."
    outside = f"model.layers.{n_layers}." if is_glm else "mtp."
    names = _PREDICTION_NAMES[is_glm]
    shapes = {name.replace(last, of_layer): values.shape for name, values in tensors.items() if last in name}
    shapes |= {f"{outside}{name}.weight": (width, 2 * width) if name == names[0] else (width,) for name in names}
    for name, shape in shapes.items():
        spread, mean = (0.3, 1.0 if is_glm and "norm" in name else 0.0) if len(shape) == 1 else (0.1, 0.0)
        tensors[name] = mean + spread * torch.randn(shape, generator=random)
    save_file(tensors, path, {"format": "pt"})


def _turn_experts(path: Path) -> None:
    """Store experts with their inputs as rows, as they were published and transformers no longer saves them."""
    tensors = load_file(path)
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, path, {"format": "pt"})


def write_encoder(name: str, folder: Path) -> None:
    """Write a checkpoint that turns texts into vectors, as sentence-transformers would."""
    class_name, changes, tokenizer_files, pooling = ENCODERS[name]
    kind = getattr(transformers, class_name)
    own = {
        key: value
        for key, value in _PLAIN.items()
        if key not in ("num_key_value_heads", "bos_token_id", "eos_token_id")
    }
    # with sharper weights for those that rank by a head, or all documents would score alike
    is_soft = bool(pooling) or class_name.endswith("ForCausalLM")
    _save(lambda: kind(kind.config_class(**(own | changes))), folder, 0.08 if is_soft else 0.25)
    _set_published_class(name, folder)
    write_tokenizer(folder, *tokenizer_files())
    if pooling:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
        paths = {**_MODULES, **_write_dense_modules(folder, _DENSE_WIDTHS.get(name, ()))}
        modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in paths.items()]
        (folder / "modules.json").write_text(json.dumps(modules))


def _write_dense_modules(folder: Path, widths: Sequence[int]) -> dict[str, str]:
    """Write linear modules between `widths`, and return their kind by their folder."""
    paths = [f"{2 + i}_Dense" for i in range(len(widths) - 1)]
    for path, sizes in zip(paths, pairwise(widths), strict=True):
        settings = dict(zip(("in_features", "out_features"), sizes, strict=True))
        (folder / path).mkdir(exist_ok=True)
        (folder / path / "config.json").write_text(
            json.dumps(settings | {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"})
        )
        save_file({"linear.weight": torch.randn(*sizes[::-1]) * 0.2}, folder / path / "model.safetensors")
    return dict.fromkeys(paths, "Dense")


def _save(build: Callable[[], Any], folder: Path, spread: float = 0.08) -> None:
    torch.manual_seed(7)
    model = build()
    for name, parameter in model.named_parameters():
        parameter.data += torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else spread)
        if folder.name.startswith(_CALM) and re.search(r"\.post_\w*norm", name):
            parameter.data *= _CALMED
    # biases of experts are no parameters; masks are no numbers
    for name, values in model.named_buffers():
        if name.endswith(("std_bias", "std_scale")):  # not set yet
            values.fill_(1.0)
        if name.endswith(("bias", "std_scale")) and values.is_floating_point():
            values += torch.randn_like(values) * 0.3
        if name.endswith(("put_min", "put_max")):
            values.fill_(-_BOUND if name.endswith("min") else _BOUND)
    model.save_pretrained(folder, save_original_format=not folder.name.endswith(_FUSED))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[*CHECKPOINTS, *ENCODERS, []], default=[])
    arguments = parser.parse_args()
    for name in arguments.names or [*CHECKPOINTS, *ENCODERS]:
        write(name, arguments.folder / name)
        print(name)


if __name__ == "__main__":
    main()
