"""Initial weights in which copying is wired already: a previous-token head, then an induction head.

A transformer finds these two heads by itself after some millions of tokens (Olsson et al., 2022, "In-context learning
and induction heads"). Wiring them saves that time on a small budget; training is free to change every weight.

The hidden state is used so at the start: channel 0 is a constant, channels 1..127 hold the token, and layer 0 writes a
projection of the previous token into channels 128..159.
"""

from __future__ import annotations

import torch

from assets.guide.model import Attention, Llama

__all__ = ["wire_copying"]

CONSTANT = 0.1
TOKEN = slice(1, 128)
PREVIOUS = slice(128, 160)
N_NEAR = 9  # rotary pairs of high frequency, which tell neighbours apart
FIRST_FAR = 16  # rotary pairs from here on hardly turn within a context: they can compare contents at a distance
SHARPNESS = 7.0
MATCH = 0.13
CONFIDENCE = 4.0  # with tied embeddings of this size, logits of a unit norm would be too flat to trust a copy


@torch.no_grad()
def wire_copying(model: Llama) -> None:
    """Set the embedding and one head of each of the first two layers; every other block adds nothing at the start."""
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.zero_()
    weight = model.embed_tokens.weight
    weight[:, 0] = CONSTANT
    weight[:, TOKEN.stop :] *= 0.05
    projection = torch.randn(PREVIOUS.stop - PREVIOUS.start, TOKEN.stop - TOKEN.start) * MATCH
    first, second = (model.layers[i].self_attn for i in range(2))
    _look_back(first)
    _carry(first, projection)
    _match(second, projection)
    _copy(second)
    model.norm.weight.fill_(CONFIDENCE)


def _look_back(attention: Attention) -> None:
    """Head 0 attends one position back: constant queries and keys, the key turned by one step."""
    n_pairs = attention.shape.head_dim // 2
    angles = attention.shape.rope_theta ** -(torch.arange(N_NEAR) / n_pairs)
    attention.q_proj.weight[: attention.shape.head_dim] = 0
    attention.k_proj.weight[: attention.shape.head_dim] = 0
    attention.q_proj.weight[:N_NEAR, 0] = SHARPNESS / 6.5
    attention.k_proj.weight[:N_NEAR, 0] = SHARPNESS / 6.5 * angles.cos()
    attention.k_proj.weight[n_pairs : n_pairs + N_NEAR, 0] = SHARPNESS / 6.5 * angles.sin()


def _carry(attention: Attention, projection: torch.Tensor) -> None:
    """Head 0 moves a projection of the token it attends to into the channels PREVIOUS."""
    n_kept = projection.shape[0]
    attention.v_proj.weight[:n_kept, TOKEN] = projection
    attention.o_proj.weight[PREVIOUS, :n_kept] = 0.02 * torch.eye(n_kept)


def _match(attention: Attention, projection: torch.Tensor) -> None:
    """Head 0 attends to positions whose previous token is the current one."""
    n_pairs = attention.shape.head_dim // 2
    far = torch.cat((torch.arange(FIRST_FAR, n_pairs), torch.arange(n_pairs + FIRST_FAR, 2 * n_pairs)))
    attention.q_proj.weight[: 2 * n_pairs] = 0
    attention.k_proj.weight[: 2 * n_pairs] = 0
    attention.q_proj.weight[far, TOKEN] = projection
    attention.k_proj.weight[far, PREVIOUS] = 1.5 * torch.eye(len(far))


def _copy(attention: Attention) -> None:
    """Head 0 writes the token that it attends to where the output layer reads it."""
    n_kept = attention.shape.head_dim
    basis = torch.linalg.qr(torch.randn(TOKEN.stop - TOKEN.start, n_kept)).Q.T
    attention.v_proj.weight[:n_kept, TOKEN] = basis
    attention.o_proj.weight[TOKEN, :n_kept] = 0.2 * basis.T
