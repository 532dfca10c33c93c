"""A small Llama in plain torch, the same arithmetic as transformers' LlamaForCausalLM.

Owns the architecture and the names of its weights. Independent of text, of training or of files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The hyperparameters of the guide; hidden and feed-forward sizes are multiples of 256, as K-quants want."""

    n_vocab: int = 4096
    n_hidden: int = 256
    n_feed_forward: int = 768
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int = 2
    n_positions: int = 2048
    rope_theta: float = 500000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.n_hidden // self.n_heads


def rotary_table(shape: Shape) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each [n_positions, head_dim], float32; the two halves of a head share angles."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(shape.n_positions, dtype=torch.float32), shape.rope_theta**-exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Apply the rotary embedding to heads [batch, n_heads, length, head_dim]."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


class Attention(nn.Module):
    """Causal self-attention with grouped key and value heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.n_hidden, shape.n_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.n_hidden, shape.n_kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.n_hidden, shape.n_kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.n_heads * shape.head_dim, shape.n_hidden, bias=False)

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        query, key, value = (
            projection(hidden).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate(query, cosines, sines), rotate(key, cosines, sines)
        n_groups = self.shape.n_heads // self.shape.n_kv_heads
        key, value = key.repeat_interleave(n_groups, dim=1), value.repeat_interleave(n_groups, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.n_hidden, shape.n_feed_forward, bias=False)
        self.up_proj = nn.Linear(shape.n_hidden, shape.n_feed_forward, bias=False)
        self.down_proj = nn.Linear(shape.n_feed_forward, shape.n_hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    """One pre-norm block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.n_hidden, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.n_hidden, eps=shape.rms_norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cosines, sines)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Llama(nn.Module):
    """Token ids in, final hidden states out; `logits` turns chosen states into scores over the vocabulary."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.n_vocab, shape.n_hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layers))
        self.norm = nn.RMSNorm(shape.n_hidden, eps=shape.rms_norm_eps)
        cosines, sines = rotary_table(shape)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self.apply(_initialise)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the normalised hidden states [batch, length, n_hidden] of tokens [batch, length]."""
        hidden = self.embed_tokens(tokens)
        kind = torch.get_autocast_dtype(tokens.device.type) if torch.is_autocast_enabled(tokens.device.type) else None
        length = tokens.shape[1]
        cosines, sines = (table[:length].to(kind or hidden.dtype) for table in (self.cosines, self.sines))
        hidden = hidden.to(cosines.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cosines, sines)
        return self.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return scores [..., n_vocab]; the embedding is tied."""
        return functional.linear(hidden, self.embed_tokens.weight.to(hidden.dtype))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
