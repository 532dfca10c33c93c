"""Kimi Linear: in most layers a state that each of its dimensions forgets at its own rate (KDA), in the others latent
attention as DeepSeek's, without positions; dense layers before those of experts.
"""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture, Hyperparameter, Value
from quantizer.architectures.families.deepseek import DEEPSEEK
from quantizer.architectures.shapes import CHOICE_CORRECTION, FUSED_EXPERTS, NUMBERED_EXPERTS, Dimensions
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import negative_exponential, whole_tensor

_DEEPSEEK = DEEPSEEK[0]
_FULL_EVERY = 4


def _settings(config: Config) -> Config:
    """Return the settings of the states, which published checkpoints keep in an object of their own."""
    return config.section("linear_attn_config")


def _attends(config: Config, i: int) -> bool:
    """Return whether layer `i` attends, by the list of transformers, the published one, or the class's default."""
    kinds, chosen = config.values.get("layer_types"), _settings(config).values.get("full_attn_layers")
    if isinstance(kinds, list) and i < len(kinds):
        return bool(kinds[i] == "full_attention")
    return i + 1 in chosen if isinstance(chosen, list) else i > 0 and i % _FULL_EVERY == 0


def _n_dense(config: Config) -> int:
    kinds = config.values.get("mlp_layer_types")
    if isinstance(kinds, list):
        return next((i for i, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    return config.integer("first_k_dense_replace")


def _head(config: Config) -> int:
    return _settings(config).optional_integer("head_dim") or config.integer("linear_head_dim")


def _kernel(config: Config) -> int:
    return _settings(config).optional_integer("short_conv_kernel_size") or config.integer("linear_conv_kernel_dim")


def _state(config: Config) -> Dimensions:
    n_embd, n_heads, head = config.integer("hidden_size"), config.integer("num_attention_heads"), _head(config)
    width = n_heads * head
    return {
        **{f"attn_{name}.weight": (n_embd, width) for name in "qkv"},
        **{f"ssm_conv1d_{name}.weight": (_kernel(config), 1, width) for name in "qkv"},
        **{f"ssm_{gate}_a.weight": (n_embd, head) for gate in "fg"},
        **{f"ssm_{gate}_b.weight": (head, width) for gate in "fg"},
        "ssm_beta.weight": (n_embd, n_heads),
        "ssm_a": (1, n_heads),
        "ssm_dt.bias": (width,),
        "ssm_norm.weight": (head,),
        "attn_output.weight": (width, n_embd),
    }


def _layer(config: Config, i: int) -> Dimensions:
    latent = _DEEPSEEK.layer_tensors
    assert callable(latent)
    n_dense = _n_dense(config)
    tensors = latent(Config({**config.values, "first_k_dense_replace": n_dense}), i)
    shared = {
        name: extents for name, extents in tensors.items() if name.startswith("ffn_") or name == "attn_norm.weight"
    }
    bias: Dimensions = {} if i < n_dense else {"exp_probs_b.bias": ("n_expert",)}
    return {**(tensors if _attends(config, i) else {**shared, **_state(config)}), **bias}


def _kv_heads(config: Config) -> Value:
    """Return the latent head of each layer that attends."""
    return [int(_attends(config, i)) for i in range(config.integer("num_hidden_layers"))]


_REPLACED = ("attention.head_count_kv", "leading_dense_block_count", "attention.q_lora_rank")

KIMI = Architecture(
    hf_classes=("KimiLinearForCausalLM",),
    gguf_name="kimi-linear",
    hyperparameters=(
        *(
            row
            for row in _DEEPSEEK.hyperparameters
            if row.key not in _REPLACED and not row.key.startswith(("rope.scaling.", "rope.freq"))
        ),
        Hyperparameter("attention.head_count_kv", "u32[]", _kv_heads),
        Hyperparameter("leading_dense_block_count", "u32", _n_dense),
        Hyperparameter("ssm.conv_kernel", "u32", _kernel),
        Hyperparameter("kda.head_dim", "u32", _head),
    ),
    layer_tensors=_layer,
    value_maps={"SSM_A": negative_exponential},
    reshaped=("SSM_A", "SSM_CONV1D_Q", "SSM_CONV1D_K", "SSM_CONV1D_V"),
    splits={
        "kv_b_proj.weight": _DEEPSEEK.splits["kv_b_proj.weight"],
        **CHOICE_CORRECTION,
        ".dt_bias": {".dt_proj.bias": whole_tensor},
        **FUSED_EXPERTS,
    },
    stacks=NUMBERED_EXPERTS,
    # transformers saves plain feed-forwards under the name of experts
    renames={r"\.block_sparse_moe\.((gate|up|down)_proj)\.": r".mlp.\1."},
    leaves_later_layers=True,
    unadapted=_DEEPSEEK.unadapted,
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
        "hidden_act": lambda _config: "silu",
        "tie_word_embeddings": lambda _config: False,
        "attention_bias": lambda _config: False,
        "scoring_func": lambda _config: "sigmoid",
        "norm_topk_prob": lambda _config: True,
        "q_lora_rank": lambda _config: None,
        "mla_use_nope": lambda _config: True,
        "linear_num_heads": lambda config: config.integer("num_attention_heads"),
        "moe_layer_freq": lambda _config: 1,
    },
)
