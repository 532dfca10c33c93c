"""What a model of each architecture consists of: its tensors, how wide they are spread, and its metadata.

Owns one function for the layer of each architecture. Names are GGUF's (source: llama.cpp src/models as vendored in
llama-cpp-python 0.3.36). Knows nothing of particular models, nor of how weights are drawn or stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.bench.models.vocabulary import N_QUIET_TOKENS
from tests.bench.models.weights import RandomTensor, constant, matrix

__all__ = [
    "ATTENTION_INTERVAL",
    "Recurrence",
    "Shape",
    "Value",
    "gemma3_layer",
    "gpt_oss_layer",
    "lfm2_layer",
    "llama_layer",
    "mamba2_layer",
    "mamba_layer",
    "metadata",
    "qwen3_layer",
    "qwen3moe_layer",
    "qwen35_layer",
    "tensors",
]

# Standard deviation of the logits. The chance of a token must neither be flat nor leave others none.
_LOGIT_SPREAD = 3.0
# Scores of attention with this gain in queries and keys prefer a few positions over the rest.
_ATTENTION_GAIN = 1.5
_BIAS_SPREAD = 0.1
ATTENTION_INTERVAL = 4  # of Qwen 3.5: every fourth layer has attention
_N_CONVOLVED = 4  # tokens that a convolution sees

Value = tuple[object, str]
Layer = Callable[["Shape", int], Iterator[RandomTensor]]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The widths of a recurrent layer as Mamba 2 and Gated DeltaNet have them."""

    inner: int
    n_state: int
    n_heads: int
    n_groups: int

    @property
    def convolved(self) -> int:
        """Channels that pass the convolution: the inner ones, and two of every group's state."""
        return self.inner + 2 * self.n_groups * self.n_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One model. `attention_layers` empty means that every layer has attention; `more` is metadata by suffix.

    `n_layers` counts the `n_prediction_layers` too, which come last; `n_rotated` are the
    dimensions of a head that positions rotate, all for 0; `ssm` has the widths of recurrent layers.
    """

    architecture: str
    layer: Layer
    n_layers: int
    n_embd: int
    n_vocab: int
    n_ctx: int
    n_ff: int = 0
    n_heads: int = 0
    n_kv_heads: int = 0
    head_dim: int = 0
    n_rotated: int = 0
    n_experts: int = 0
    n_experts_used: int = 0
    attention_layers: tuple[int, ...] = ()
    n_prediction_layers: int = 0
    ssm: Recurrence | None = None
    has_output: bool = False
    pre_tokenizer: str = "llama-bpe"
    output_norm: str = "output_norm"
    more: tuple[tuple[str, Value], ...] = ()

    @property
    def output_gain(self) -> float:
        """Gain of what a layer adds, so that all of them together outweigh the embedding of the input token."""
        return 5.0 / math.sqrt(self.n_layers)


def tensors(shape: Shape) -> Iterator[RandomTensor]:
    """Yield all tensors of a model; the output matrix is the embedding's, unless it has its own."""
    spread = _LOGIT_SPREAD / math.sqrt(shape.n_embd)
    yield RandomTensor("token_embd.weight", (shape.n_embd, shape.n_vocab), spread, n_quiet_rows=N_QUIET_TOKENS)
    yield constant(shape.output_norm, shape.n_embd)
    if shape.has_output:
        yield RandomTensor("output.weight", (shape.n_embd, shape.n_vocab), spread, n_quiet_rows=N_QUIET_TOKENS)
    for index in range(shape.n_layers):
        yield from shape.layer(shape, index)


def metadata(shape: Shape) -> Iterator[tuple[str, Value]]:
    """Yield suffix and typed value of the entries below the architecture's name; zeros mean: has none."""
    kv_heads = [shape.n_kv_heads if _has_attention(shape, i) else 0 for i in range(shape.n_layers)]
    yield "context_length", (shape.n_ctx, "u32")
    yield "embedding_length", (shape.n_embd, "u32")
    yield "block_count", (shape.n_layers, "u32")
    yield "vocab_size", (shape.n_vocab, "u32")
    yield "feed_forward_length", (shape.n_ff, "u32")
    yield "attention.head_count", (shape.n_heads, "u32")
    yield "attention.head_count_kv", (kv_heads, "u32[]") if shape.attention_layers else (shape.n_kv_heads, "u32")
    yield "attention.layer_norm_rms_epsilon", (1e-5, "f32")
    if shape.head_dim:
        yield "attention.key_length", (shape.head_dim, "u32")
        yield "attention.value_length", (shape.head_dim, "u32")
        yield "rope.dimension_count", (shape.n_rotated or shape.head_dim, "u32")
    if shape.n_prediction_layers:
        yield "nextn_predict_layers", (shape.n_prediction_layers, "u32")
    if ssm := shape.ssm:
        yield "ssm.conv_kernel", (_N_CONVOLVED, "u32")
        yield "ssm.inner_size", (ssm.inner, "u32")
        yield "ssm.state_size", (ssm.n_state, "u32")
        yield "ssm.time_step_rank", (ssm.n_heads, "u32")
        yield "ssm.group_count", (ssm.n_groups, "u32")
    yield from shape.more


def _has_attention(shape: Shape, index: int) -> bool:
    return not shape.attention_layers or index in shape.attention_layers


def _attention(shape: Shape, index: int, gain: float = 1.0) -> Iterator[RandomTensor]:
    block, width = f"blk.{index}.", shape.head_dim * shape.n_heads
    kv_width = shape.head_dim * shape.n_kv_heads
    yield matrix(f"{block}attn_q", shape.n_embd, width, gain)
    yield matrix(f"{block}attn_k", shape.n_embd, kv_width, gain)
    yield matrix(f"{block}attn_v", shape.n_embd, kv_width)
    yield matrix(f"{block}attn_output", width, shape.n_embd, shape.output_gain)


def _normed_attention(shape: Shape, index: int) -> Iterator[RandomTensor]:
    """Attention whose queries and keys have norms of their own, which then set their scale."""
    yield from _attention(shape, index)
    yield constant(f"blk.{index}.attn_q_norm", shape.head_dim, _ATTENTION_GAIN)
    yield constant(f"blk.{index}.attn_k_norm", shape.head_dim, _ATTENTION_GAIN)


def _norms(shape: Shape, index: int) -> Iterator[RandomTensor]:
    yield constant(f"blk.{index}.attn_norm", shape.n_embd)
    yield constant(f"blk.{index}.ffn_norm", shape.n_embd)


def _feed_forward(shape: Shape, index: int) -> Iterator[RandomTensor]:
    block = f"blk.{index}."
    yield matrix(f"{block}ffn_gate", shape.n_embd, shape.n_ff)
    yield matrix(f"{block}ffn_up", shape.n_embd, shape.n_ff)
    yield matrix(f"{block}ffn_down", shape.n_ff, shape.n_embd, shape.output_gain)


def _experts(shape: Shape, index: int) -> Iterator[RandomTensor]:
    block, n = f"blk.{index}.", shape.n_experts
    yield matrix(f"{block}ffn_gate_inp", shape.n_embd, n)
    yield matrix(f"{block}ffn_gate_exps", shape.n_embd, shape.n_ff, n_experts=n)
    yield matrix(f"{block}ffn_up_exps", shape.n_embd, shape.n_ff, n_experts=n)
    yield matrix(f"{block}ffn_down_exps", shape.n_ff, shape.n_embd, shape.output_gain, n_experts=n)


def llama_layer(shape: Shape, index: int) -> Iterator[RandomTensor]:
    """Attention and a gated feed-forward."""
    yield from _norms(shape, index)
    yield from _attention(shape, index, _ATTENTION_GAIN)
    yield from _feed_forward(shape, index)


def qwen3_layer(shape: Shape, index: int) -> Iterator[RandomTensor]:
    """The same with normed queries and keys."""
    yield from _norms(shape, index)
    yield from _normed_attention(shape, index)
    yield from _feed_forward(shape, index)


def qwen3moe_layer(shape: Shape, index: int) -> Iterator[RandomTensor]:
    """The same with experts."""
    yield from _norms(shape, index)
    yield from _normed_attention(shape, index)
    yield from _experts(shape, index)


def gemma3_layer(shape: Shape, index: int) -> Iterator[RandomTensor]:
    """Sublayers whose output is normed; its embedding is scaled by the root of its width, which they must outweigh."""
    after = _LOGIT_SPREAD * math.sqrt(shape.n_embd / (2 * shape.n_layers))
    yield from qwen3_layer(shape, index)
    yield constant(f"blk.{index}.post_attention_norm", shape.n_embd, after)
    yield constant(f"blk.{index}.post_ffw_norm", shape.n_embd, after)


def gpt_oss_layer(shape: Shape, index: int) -> Iterator[RandomTensor]:
    """Attention with a sink for each head, and experts; all of them with biases."""
    block = f"blk.{index}."
    yield constant(f"{block}attn_norm", shape.n_embd)
    yield constant(f"{block}post_attention_norm", shape.n_embd)
    yield from _attention(shape, index, _ATTENTION_GAIN)
    yield constant(f"{block}attn_sinks", shape.n_heads, 0.0)
    yield from _experts(shape, index)
    widths = {"attn_q": shape.head_dim * shape.n_heads, "attn_k": shape.head_dim * shape.n_kv_heads}
    widths |= {"attn_v": shape.head_dim * shape.n_kv_heads, "attn_output": shape.n_embd}
    for name, width in widths.items():
        yield RandomTensor(f"{block}{name}.bias", (width,), _BIAS_SPREAD)
    yield RandomTensor(f"{block}ffn_gate_inp.bias", (shape.n_experts,), _BIAS_SPREAD)
    for name, width in {"gate": shape.n_ff, "up": shape.n_ff, "down": shape.n_embd}.items():
        yield RandomTensor(f"{block}ffn_{name}_exps.bias", (width, shape.n_experts), _BIAS_SPREAD)


def lfm2_layer(shape: Shape, index: int) -> Iterator[RandomTensor]:
    """A short convolution over the last three tokens, or attention."""
    block = f"blk.{index}."
    yield from _norms(shape, index)
    if _has_attention(shape, index):
        yield from _normed_attention(shape, index)
    else:
        yield RandomTensor(f"{block}shortconv.conv.weight", (3, shape.n_embd), 0.6)
        yield matrix(f"{block}shortconv.in_proj", shape.n_embd, 3 * shape.n_embd)
        yield matrix(f"{block}shortconv.out_proj", shape.n_embd, shape.n_embd, shape.output_gain)
    yield from _feed_forward(shape, index)


def mamba_layer(shape: Shape, index: int) -> Iterator[RandomTensor]:
    """A selective state space; the state fades slowly (A near -1, small time steps)."""
    block, inner, n_state, rank = f"blk.{index}.", 2 * shape.n_embd, 16, -(-shape.n_embd // 16)
    yield constant(f"{block}attn_norm", shape.n_embd)
    yield matrix(f"{block}ssm_in", shape.n_embd, 2 * inner)
    yield RandomTensor(f"{block}ssm_conv1d.weight", (4, inner), 0.5)
    yield RandomTensor(f"{block}ssm_conv1d.bias", (inner,), 0.1)
    yield matrix(f"{block}ssm_x", inner, rank + 2 * n_state)
    yield matrix(f"{block}ssm_dt", rank, inner)
    yield RandomTensor(f"{block}ssm_dt.bias", (inner,), 0.5, -2.0)
    yield RandomTensor(f"{block}ssm_a", (n_state, inner), 0.1, -1.0)
    yield RandomTensor(f"{block}ssm_d", (inner,), 0.1, 1.0)
    yield matrix(f"{block}ssm_out", inner, shape.n_embd, 2 * shape.output_gain)


def mamba2_layer(shape: Shape, index: int) -> Iterator[RandomTensor]:
    """A state space whose state fades by the same factor in all channels of a head."""
    assert shape.ssm is not None
    block, ssm = f"blk.{index}.", shape.ssm
    yield constant(f"{block}attn_norm", shape.n_embd)
    yield matrix(f"{block}ssm_in", shape.n_embd, ssm.inner + ssm.convolved + ssm.n_heads)
    yield RandomTensor(f"{block}ssm_conv1d.weight", (_N_CONVOLVED, ssm.convolved), 0.5)
    yield RandomTensor(f"{block}ssm_conv1d.bias", (ssm.convolved,), _BIAS_SPREAD)
    yield RandomTensor(f"{block}ssm_dt.bias", (ssm.n_heads,), 0.5, -2.0)
    yield RandomTensor(f"{block}ssm_a", (1, ssm.n_heads), 0.1, -1.0)
    yield RandomTensor(f"{block}ssm_d", (1, ssm.n_heads), 0.1, 1.0)
    yield RandomTensor(f"{block}ssm_norm.weight", (ssm.inner // ssm.n_groups, ssm.n_groups), 0.0, 1.0)
    yield matrix(f"{block}ssm_out", ssm.inner, shape.n_embd, 2 * shape.output_gain)


def qwen35_layer(shape: Shape, index: int) -> Iterator[RandomTensor]:
    """Gated DeltaNet or gated attention, and a feed-forward; a prediction layer is one of attention."""
    block = f"blk.{index}."
    yield constant(f"{block}attn_norm", shape.n_embd)
    yield constant(f"{block}post_attention_norm", shape.n_embd)
    is_prediction = index >= shape.n_layers - shape.n_prediction_layers
    if is_prediction or (index + 1) % ATTENTION_INTERVAL == 0:
        yield from _gated_attention(shape, index)
    else:
        yield from _delta_net(shape, index)
    yield from _feed_forward(shape, index)
    if is_prediction:
        yield matrix(f"{block}nextn.eh_proj", 2 * shape.n_embd, shape.n_embd)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            yield constant(f"{block}nextn.{name}", shape.n_embd)


def _gated_attention(shape: Shape, index: int) -> Iterator[RandomTensor]:
    """Attention whose queries come with a gate of their own width."""
    block = f"blk.{index}."
    for tensor in _normed_attention(shape, index):
        is_query = tensor.name == f"{block}attn_q.weight"
        yield matrix(f"{block}attn_q", shape.n_embd, 2 * tensor.shape[1]) if is_query else tensor


def _delta_net(shape: Shape, index: int) -> Iterator[RandomTensor]:
    assert shape.ssm is not None
    block, ssm = f"blk.{index}.", shape.ssm
    yield matrix(f"{block}attn_qkv", shape.n_embd, ssm.convolved)
    yield matrix(f"{block}attn_gate", shape.n_embd, ssm.inner)
    yield RandomTensor(f"{block}ssm_conv1d.weight", (_N_CONVOLVED, ssm.convolved), 0.5)
    yield RandomTensor(f"{block}ssm_dt.bias", (ssm.n_heads,), 0.5, -2.0)
    yield RandomTensor(f"{block}ssm_a", (ssm.n_heads,), 0.1, -1.0)
    yield matrix(f"{block}ssm_alpha", shape.n_embd, ssm.n_heads)
    yield matrix(f"{block}ssm_beta", shape.n_embd, ssm.n_heads)
    yield constant(f"{block}ssm_norm", ssm.inner // ssm.n_heads)
    yield matrix(f"{block}ssm_out", ssm.inner, shape.n_embd, shape.output_gain)
