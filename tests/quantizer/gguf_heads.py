"""Tiny models of a few layers, the last of which predict further tokens.

Every token has one that follows it, in one long cycle, so that nothing said can be looked up; trunk and prediction
layer both know the cycle. What attention and experts add to that is noise: where it decides, the two may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from tests.quantizer.gguf_files import N_EMBD, N_FF, N_HEADS, N_KV_HEADS, N_TOKENS, Edit, tiny_llama

__all__ = ["PREDICTING", "first_predicting", "n_predicting", "predicting_model", "predicting_weights", "split_model"]

N_EXPERTS, N_FF_EXPERT, N_RANK, N_ROPE, N_HEAD, N_INDEX_HEADS, N_INDEX_HEAD = 4, 32, 32, 8, 16, 8, 64
N_STATE, N_WINDOW = 16, 24
Shapes = dict[str, tuple[int, ...]]

_EXPERTS: Shapes = {
    "ffn_gate_inp.weight": (N_EXPERTS, N_EMBD),
    "exp_probs_b.bias": (N_EXPERTS,),
    "ffn_gate_exps.weight": (N_EXPERTS, N_FF_EXPERT, N_EMBD),
    "ffn_up_exps.weight": (N_EXPERTS, N_FF_EXPERT, N_EMBD),
    "ffn_down_exps.weight": (N_EXPERTS, N_EMBD, N_FF_EXPERT),
    "ffn_gate_shexp.weight": (N_FF_EXPERT, N_EMBD),
    "ffn_up_shexp.weight": (N_FF_EXPERT, N_EMBD),
    "ffn_down_shexp.weight": (N_EMBD, N_FF_EXPERT),
}
_PLAIN_EXPERTS: Shapes = {name: shape for name, shape in _EXPERTS.items() if not name.startswith("exp_probs")}
_ATTENTION: Shapes = {
    "attn_norm.weight": (N_EMBD,),
    "attn_q.weight": (N_EMBD, N_EMBD),
    "attn_k.weight": (N_EMBD // N_HEADS * N_KV_HEADS, N_EMBD),
    "attn_v.weight": (N_EMBD // N_HEADS * N_KV_HEADS, N_EMBD),
    "attn_output.weight": (N_EMBD, N_EMBD),
}
_LATENT_ATTENTION: Shapes = {
    "attn_norm.weight": (N_EMBD,),
    "attn_q_a.weight": (N_RANK, N_EMBD),
    "attn_q_a_norm.weight": (N_RANK,),
    "attn_q_b.weight": (N_HEADS * (N_HEAD + N_ROPE), N_RANK),
    "attn_kv_a_mqa.weight": (N_RANK + N_ROPE, N_EMBD),
    "attn_kv_a_norm.weight": (N_RANK,),
    "attn_k_b.weight": (N_HEADS, N_RANK, N_HEAD),
    "attn_v_b.weight": (N_HEADS, N_HEAD, N_RANK),
    "attn_output.weight": (N_EMBD, N_HEADS * N_HEAD),
}
_DENSE: Shapes = {"ffn_gate.weight": (N_FF, N_EMBD), "ffn_up.weight": (N_FF, N_EMBD), "ffn_down.weight": (N_EMBD, N_FF)}
_NORMED_ATTENTION: Shapes = {
    **_ATTENTION,
    "attn_q_norm.weight": (N_EMBD // N_HEADS,),
    "attn_k_norm.weight": (N_EMBD // N_HEADS,),
}
_GATED_ATTENTION: Shapes = {
    **_NORMED_ATTENTION,
    "attn_q.weight": (2 * N_EMBD, N_EMBD),
    "post_attention_norm.weight": (N_EMBD,),
}
_LINEAR_ATTENTION: Shapes = {
    "attn_norm.weight": (N_EMBD,),
    "post_attention_norm.weight": (N_EMBD,),
    "attn_qkv.weight": (3 * N_EMBD, N_EMBD),
    "attn_gate.weight": (N_EMBD, N_EMBD),
    "ssm_conv1d.weight": (3 * N_EMBD, 4),
    "ssm_dt.bias": (N_HEADS,),
    "ssm_a": (N_HEADS,),
    "ssm_beta.weight": (N_HEADS, N_EMBD),
    "ssm_alpha.weight": (N_HEADS, N_EMBD),
    "ssm_norm.weight": (N_EMBD // N_HEADS,),
    "ssm_out.weight": (N_EMBD, N_EMBD),
}
_FUSED_LINEAR_ATTENTION: Shapes = {
    **{name: shape for name, shape in _LINEAR_ATTENTION.items() if name not in ("ssm_alpha.weight", "ssm_beta.weight")},
    "ssm_ba.weight": (2 * N_HEADS, N_EMBD),
}
_GATED_EXPERTS: Shapes = {**_PLAIN_EXPERTS, "ffn_gate_inp_shexp.weight": (N_EMBD,)}
_INDEXER: Shapes = {
    "indexer.k_norm.weight": (N_INDEX_HEAD,),
    "indexer.k_norm.bias": (N_INDEX_HEAD,),
    "indexer.proj.weight": (N_INDEX_HEADS, N_EMBD),
    "indexer.attn_k.weight": (N_INDEX_HEAD, N_EMBD),
    "indexer.attn_q_b.weight": (N_INDEX_HEADS * N_INDEX_HEAD, N_RANK),
}
_LATENT_EXPERTS: Shapes = {**_LATENT_ATTENTION, **_EXPERTS, "ffn_norm.weight": (N_EMBD,)}
# of Kimi's delta attention, as Ling 3 has it
_DELTA_ATTENTION: Shapes = {
    "attn_norm.weight": (N_EMBD,),
    "attn_q.weight": (N_EMBD, N_EMBD),
    "attn_k.weight": (N_EMBD, N_EMBD),
    "attn_v.weight": (N_EMBD, N_EMBD),
    "attn_output.weight": (N_EMBD, N_EMBD),
    **{f"ssm_conv1d_{what}.weight": (N_EMBD, 1, 4) for what in "qkv"},
    "ssm_f_a.weight": (N_EMBD, N_EMBD),
    "ssm_beta.weight": (N_HEADS, N_EMBD),
    "ssm_a": (N_HEADS, 1),
    "ssm_dt.bias": (N_EMBD,),
    "ssm_g_a.weight": (N_EMBD, N_EMBD),
    "ssm_norm.weight": (N_EMBD // N_HEADS,),
}
_GATED_LATENTS: Shapes = {**_LATENT_EXPERTS, "attn_gate.weight": (N_HEADS, N_EMBD)}
_MAMBA_2: Shapes = {
    "attn_norm.weight": (N_EMBD,),
    "ssm_in.weight": (2 * N_EMBD + 2 * N_STATE + N_HEADS, N_EMBD),
    "ssm_conv1d.weight": (N_EMBD + 2 * N_STATE, 4),
    "ssm_conv1d.bias": (N_EMBD + 2 * N_STATE,),
    "ssm_dt.bias": (N_HEADS,),
    "ssm_a": (N_HEADS, 1),
    "ssm_d": (N_HEADS, 1),
    "ssm_norm.weight": (1, N_EMBD),
    "ssm_out.weight": (N_EMBD, N_EMBD),
}
_UNGATED_EXPERTS: Shapes = {name: shape for name, shape in _EXPERTS.items() if "_gate_exps" not in name}
_UNGATED_EXPERTS.pop("ffn_gate_shexp.weight")
_NORMED_DENSE: Shapes = {**_ATTENTION, **_DENSE, "ffn_norm.weight": (N_EMBD,)}
_FUSED_DENSE: Shapes = {
    **{name: shape for name, shape in _NORMED_DENSE.items() if not name.startswith(("attn_q", "attn_k", "attn_v"))},
    "attn_qkv.weight": (N_EMBD + 2 * (N_EMBD // N_HEADS * N_KV_HEADS), N_EMBD),
}
_HEAD_GATES: Shapes = {"attn_gate.weight": (N_HEADS, N_EMBD)}
_HY_3: Shapes = {**_NORMED_ATTENTION, **_PLAIN_EXPERTS, "ffn_norm.weight": (N_EMBD,)}
_STEP_EXPERTS: Shapes = {**_ATTENTION, **_EXPERTS, "ffn_norm.weight": (N_EMBD,), **_HEAD_GATES}
_LAYERS: dict[str, tuple[Shapes, ...]] = {
    "glm4moe": ({**_ATTENTION, **_EXPERTS, "post_attention_norm.weight": (N_EMBD,)},) * 2,
    "deepseek2": (_LATENT_EXPERTS,) * 2,
    "deepseek32": ({**_LATENT_EXPERTS, **_INDEXER},) * 2,
    "glm-dsa": ({**_LATENT_EXPERTS, **_INDEXER}, _LATENT_EXPERTS),
    "hy_v3": (_HY_3,) * 2,
    "hy_v3-chained": (_HY_3,) * 3,
    "bailingmoe3": (
        {**_DELTA_ATTENTION, **_EXPERTS, "ffn_norm.weight": (N_EMBD,)},
        _GATED_LATENTS,
        {**_GATED_LATENTS, "layer_output_norm.weight": (N_EMBD,)},
    ),
    "nemotron_h_moe": (
        _MAMBA_2,
        _ATTENTION,
        {**_UNGATED_EXPERTS, "attn_norm.weight": (N_EMBD,)},
        {**_ATTENTION, **_UNGATED_EXPERTS, "post_attention_norm.weight": (N_EMBD,)},
    ),
    "cohere2moe": ({**_ATTENTION, **_PLAIN_EXPERTS},) * 3,
    "mimo2": (_NORMED_DENSE, _NORMED_DENSE, _FUSED_DENSE),
    "mimo2-chained": (_NORMED_DENSE, _NORMED_DENSE, *(_FUSED_DENSE,) * 3),
    "step35": ({**_NORMED_DENSE, **_HEAD_GATES}, {**_NORMED_DENSE, **_HEAD_GATES}, _STEP_EXPERTS),
    "step35-chained": (*({**_NORMED_DENSE, **_HEAD_GATES},) * 2, _STEP_EXPERTS, _STEP_EXPERTS, _NORMED_DENSE),
    "qwen35": ({**_LINEAR_ATTENTION, **_DENSE}, *({**_GATED_ATTENTION, **_DENSE},) * 2),
    "qwen35moe": ({**_LINEAR_ATTENTION, **_GATED_EXPERTS}, *({**_GATED_ATTENTION, **_GATED_EXPERTS},) * 2),
    "qwen3next": ({**_FUSED_LINEAR_ATTENTION, **_GATED_EXPERTS}, *({**_GATED_ATTENTION, **_GATED_EXPERTS},) * 2),
}
PREDICTING = tuple(_LAYERS)
_CHAINED = "-chained"  # ending of the names of those with several layers that predict
_N_CHAINED = {"hy_v3-chained": 2, "mimo2-chained": 3, "step35-chained": 3}
_WITHOUT_HEAD_NORM = ("bailingmoe3",)  # which has that norm under another name
_NOISE = 1.2
_OWN_NOISE = {"cohere2moe": 1.8, "nemotron_h_moe": 0.5}  # for a few wrong drafts
_NOISY = ("attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight", "ssm_out.weight")


def predicting_model(
    path: Path, architecture: str = "glm4moe", edit: Edit | None = None, weights: dict[str, np.ndarray] | None = None
) -> Path:
    """Write one of 272 tokens; `edit` may add or change metadata before it is written. `-chained` behind the name of an
    architecture is one with several layers that predict."""
    name = architecture.removesuffix(_CHAINED)

    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_block_count(len(_LAYERS[architecture]))
        writer.add_nextn_predict_layers(n_predicting(architecture))
        _MORE[name](writer, len(_LAYERS[architecture]))
        if edit is not None:
            edit(writer)

    return tiny_llama(path, describe, weights or predicting_weights(architecture), name)


def split_model(folder: Path, architecture: str) -> tuple[Path, Path]:
    """Write one as two files into `folder`: the model, and what predicts with the matrices that it needs."""
    weights, first = predicting_weights(architecture), first_predicting(architecture)
    blocks = tuple(f"blk.{first + i}." for i in range(n_predicting(architecture)))
    own = {name: array for name, array in weights.items() if not name.startswith("blk.") or name.startswith(blocks)}
    trunk = {name: array for name, array in weights.items() if not name.startswith(blocks)}

    def without_layers(writer: gguf.GGUFWriter) -> None:
        writer.add_block_count(first)
        writer.add_nextn_predict_layers(0)

    model = predicting_model(folder / "model.gguf", architecture, without_layers, trunk)
    return model, predicting_model(folder / "mtp-model.gguf", architecture, weights=own)


def n_predicting(architecture: str) -> int:
    return _N_CHAINED.get(architecture, 1)


def first_predicting(architecture: str) -> int:
    """Return the number of the first layer that predicts."""
    return len(_LAYERS[architecture]) - n_predicting(architecture)


def predicting_weights(architecture: str = "glm4moe") -> dict[str, np.ndarray]:
    """Return the weights of one, by tensor name."""
    rng = np.random.default_rng(7)
    weights = _cycle(rng)
    for index, shapes in enumerate(_LAYERS[architecture]):
        for name, shape in shapes.items():
            gain = _OWN_NOISE.get(architecture, _NOISE) if name in _NOISY else 1.0
            weights[f"blk.{index}.{name}"] = _drawn(rng, shape, gain)
        if "ssm_a" in shapes:
            weights[f"blk.{index}.ssm_a"] = -np.abs(weights[f"blk.{index}.ssm_a"])  # a state fades
        if "ssm_norm.weight" in shapes:
            weights[f"blk.{index}.ssm_norm.weight"][:] = 1
    for index in range(first_predicting(architecture), len(_LAYERS[architecture])):
        head = f"blk.{index}.nextn."
        weights[f"{head}eh_proj.weight"] = np.concatenate(
            [np.eye(N_EMBD), _NOISE * rng.standard_normal((N_EMBD, N_EMBD)) / np.sqrt(N_EMBD)], axis=1
        ).astype(np.float32)
        for name in ("enorm", "hnorm", *(() if architecture in _WITHOUT_HEAD_NORM else ("shared_head_norm",))):
            weights[f"{head}{name}.weight"] = np.ones(N_EMBD, np.float32)
    return weights


def _cycle(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The embedding, and an output matrix that has each token followed by the next of a cycle through all."""
    embedding = rng.standard_normal((N_TOKENS, N_EMBD)).astype(np.float32)
    order = rng.permutation(N_TOKENS)
    output = np.zeros_like(embedding)
    output[np.roll(order, -1)] = 0.3 * embedding[order]
    return {"token_embd.weight": embedding, "output.weight": output, "output_norm.weight": np.ones(N_EMBD, np.float32)}


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> np.ndarray:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    return (gain * rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def _add_experts(writer: gguf.GGUFWriter, _n_layers: int = 0) -> None:
    writer.add_expert_count(N_EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(N_FF_EXPERT)
    writer.add_expert_shared_count(1)
    writer.add_leading_dense_block_count(0)


def _add_latent_attention(writer: gguf.GGUFWriter, _n_layers: int = 0) -> None:
    _add_experts(writer)
    writer.add_expert_weights_scale(1.0)
    writer.add_head_count_kv(1)
    writer.add_q_lora_rank(N_RANK)
    writer.add_kv_lora_rank(N_RANK)
    writer.add_key_length(N_RANK + N_ROPE)
    writer.add_value_length(N_RANK)
    writer.add_key_length_mla(N_HEAD + N_ROPE)
    writer.add_value_length_mla(N_HEAD)
    writer.add_rope_dimension_count(N_ROPE)


def _add_linear_attention(writer: gguf.GGUFWriter, _n_layers: int = 0) -> None:
    writer.add_rope_dimension_sections([4, 2, 2, 0])
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(N_EMBD)
    writer.add_ssm_state_size(N_EMBD // N_HEADS)
    writer.add_ssm_time_step_rank(N_HEADS)
    writer.add_ssm_group_count(N_HEADS)
    writer.add_uint32(f"{writer.arch}.full_attention_interval", 2)


def _add_linear_attention_and_experts(writer: gguf.GGUFWriter, _n_layers: int = 0) -> None:
    _add_linear_attention(writer)
    _add_experts(writer)
    writer.add_expert_shared_feed_forward_length(N_FF_EXPERT)


def _add_indexed_attention(writer: gguf.GGUFWriter, _n_layers: int = 0) -> None:
    _add_latent_attention(writer)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_indexer_head_count(N_INDEX_HEADS)
    writer.add_indexer_key_length(N_INDEX_HEAD)
    writer.add_indexer_top_k(2048)  # more than there are: which of equal scores are chosen is anybody's guess


def _add_delta_attention(writer: gguf.GGUFWriter, n_layers: int) -> None:
    _add_latent_attention(writer)
    writer.add_head_count_kv([0, *[1] * (n_layers - 1)])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_ssm_conv_kernel(4)
    writer.add_uint32(f"{writer.arch}.kda.head_dim", N_EMBD // N_HEADS)
    writer.add_float32(f"{writer.arch}.kda.gate_lower_bound", -5.0)


def _add_one_of_three(writer: gguf.GGUFWriter, _n_layers: int) -> None:
    _add_experts(writer)
    writer.add_head_count_kv([0, N_KV_HEADS, 0, N_KV_HEADS])
    writer.add_feed_forward_length([0, 0, N_FF_EXPERT, N_FF_EXPERT])
    writer.add_expert_shared_feed_forward_length(N_FF_EXPERT)
    writer.add_layer_norm_eps(1e-5)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(N_EMBD)
    writer.add_ssm_state_size(N_STATE)
    writer.add_ssm_time_step_rank(N_HEADS)
    writer.add_ssm_group_count(1)


def _add_windows(writer: gguf.GGUFWriter, n_layers: int) -> None:
    """The first layer attends to everything, all others have a window."""
    writer.add_sliding_window(N_WINDOW)
    writer.add_sliding_window_pattern([index > 0 for index in range(n_layers)])
    writer.add_expert_feed_forward_length(N_FF_EXPERT)


def _add_windows_and_experts(writer: gguf.GGUFWriter, n_layers: int) -> None:
    _add_windows(writer, n_layers)
    _add_experts(writer)
    writer.add_expert_shared_feed_forward_length(N_FF_EXPERT)


def _add_windowed_experts(writer: gguf.GGUFWriter, _n_layers: int) -> None:
    _add_experts(writer)
    writer.add_sliding_window(N_WINDOW)
    writer.add_expert_shared_feed_forward_length(N_FF_EXPERT)
    writer.add_logit_scale(1.0)


_MORE: dict[str, Callable[[gguf.GGUFWriter, int], None]] = {
    "glm4moe": _add_experts,
    "deepseek2": _add_latent_attention,
    **dict.fromkeys(("deepseek32", "glm-dsa"), _add_indexed_attention),
    "hy_v3": _add_experts,
    "bailingmoe3": _add_delta_attention,
    "nemotron_h_moe": _add_one_of_three,
    "cohere2moe": _add_windowed_experts,
    "mimo2": _add_windows,
    "step35": _add_windows_and_experts,
    "qwen35": _add_linear_attention,
    "qwen35moe": _add_linear_attention_and_experts,
    "qwen3next": _add_linear_attention_and_experts,
}
