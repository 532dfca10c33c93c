"""Tiny models of a few layers, the last of which predicts one token further.

Every token has one that follows it, in one long cycle, so that nothing said can be looked up; trunk and prediction
layer both know the cycle. What attention and experts add to that is noise: where it decides, the two may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from tests.quantizer.gguf_files import N_EMBD, N_FF, N_HEADS, N_KV_HEADS, N_TOKENS, Edit, tiny_llama

__all__ = ["predicting_model", "predicting_weights"]

N_EXPERTS, N_FF_EXPERT, N_RANK, N_ROPE, N_HEAD = 4, 32, 32, 8, 16
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
_LAYERS: dict[str, tuple[Shapes, ...]] = {
    "glm4moe": ({**_ATTENTION, **_EXPERTS, "post_attention_norm.weight": (N_EMBD,)},) * 2,
    "deepseek2": ({**_LATENT_ATTENTION, **_EXPERTS, "ffn_norm.weight": (N_EMBD,)},) * 2,
    "hy_v3": ({**_NORMED_ATTENTION, **_PLAIN_EXPERTS, "ffn_norm.weight": (N_EMBD,)},) * 2,
    "qwen35": ({**_LINEAR_ATTENTION, **_DENSE}, *({**_GATED_ATTENTION, **_DENSE},) * 2),
    "qwen3next": ({**_FUSED_LINEAR_ATTENTION, **_GATED_EXPERTS}, *({**_GATED_ATTENTION, **_GATED_EXPERTS},) * 2),
}
_NOISE = 1.2
_NOISY = ("attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight", "ssm_out.weight")


def predicting_model(
    path: Path, architecture: str = "glm4moe", edit: Edit | None = None, weights: dict[str, np.ndarray] | None = None
) -> Path:
    """Write one of 272 tokens; `edit` may add or change metadata before it is written."""

    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_block_count(len(_LAYERS[architecture]))
        writer.add_nextn_predict_layers(1)
        _MORE[architecture](writer)
        if edit is not None:
            edit(writer)

    return tiny_llama(path, describe, weights or predicting_weights(architecture), architecture)


def predicting_weights(architecture: str = "glm4moe") -> dict[str, np.ndarray]:
    """Return the weights of one, by tensor name."""
    rng = np.random.default_rng(7)
    weights = _cycle(rng)
    for index, shapes in enumerate(_LAYERS[architecture]):
        for name, shape in shapes.items():
            weights[f"blk.{index}.{name}"] = _drawn(rng, shape, _NOISE if name in _NOISY else 1.0)
        if "ssm_a" in shapes:
            weights[f"blk.{index}.ssm_a"] *= -1  # a state fades
    head = f"blk.{len(_LAYERS[architecture]) - 1}.nextn."
    weights[f"{head}eh_proj.weight"] = np.concatenate(
        [np.eye(N_EMBD), _NOISE * rng.standard_normal((N_EMBD, N_EMBD)) / np.sqrt(N_EMBD)], axis=1
    ).astype(np.float32)
    for name in ("enorm", "hnorm", "shared_head_norm"):
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


def _add_experts(writer: gguf.GGUFWriter) -> None:
    writer.add_expert_count(N_EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(N_FF_EXPERT)
    writer.add_expert_shared_count(1)
    writer.add_leading_dense_block_count(0)


def _add_latent_attention(writer: gguf.GGUFWriter) -> None:
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


def _add_linear_attention(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_dimension_sections([4, 2, 2, 0])
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(N_EMBD)
    writer.add_ssm_state_size(N_EMBD // N_HEADS)
    writer.add_ssm_time_step_rank(N_HEADS)
    writer.add_ssm_group_count(N_HEADS)
    writer.add_uint32(f"{writer.arch}.full_attention_interval", 2)


def _add_linear_attention_and_experts(writer: gguf.GGUFWriter) -> None:
    _add_linear_attention(writer)
    _add_experts(writer)
    writer.add_expert_shared_feed_forward_length(N_FF_EXPERT)


_MORE: dict[str, Callable[[gguf.GGUFWriter], None]] = {
    "glm4moe": _add_experts,
    "deepseek2": _add_latent_attention,
    "hy_v3": _add_experts,
    "qwen35": _add_linear_attention,
    "qwen3next": _add_linear_attention_and_experts,
}
