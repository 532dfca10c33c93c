"""Initial weights in which copying is wired already: heads that look back one and two tokens, then an induction head.

A transformer finds such heads by itself after some millions of tokens (Olsson et al., 2022, "In-context learning and
induction heads"). Wiring them saves that time on a small budget; training is free to change every weight.

The hidden state is used so at the start: channel 0 is a constant, TOKEN holds the token, and layer 0 writes codes of
the tokens before it: ONE_BACK and ONE_BACK_TOO (in two codes) and TWO_BACK. The head of layer 1 attends to positions
whose last two tokens equal the current and the one before it, and writes the token found there into TOKEN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assets.guide.model import Attention, Llama

SPREAD = 0.5  # of the embedding: large against what one training step changes
CONSTANT = 5 * SPREAD
TOKEN, ONE_BACK, ONE_BACK_TOO, TWO_BACK = slice(1, 128), slice(128, 160), slice(160, 192), slice(192, 224)
N_CODE = 32
N_NEAR = 9  # rotary pairs of high frequency, which distinguish neighbours
FIRST_FAR = 16  # rotary pairs from here on hardly turn within a context: they can compare contents at a distance
SHARPNESS, MATCH = 0.82, 1.1  # no more than it takes: sharp scores magnify what float16 rounds away
CODE = 0.13
CONFIDENCE = 4 * 0.02 / SPREAD  # the final norm's weight: with tied embeddings it sets how sure a copy is


@torch.no_grad()
def wire_copying(model: Llama) -> None:
    """Set the embedding and heads of the first two layers; every other block adds nothing at the start."""
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.zero_()
    weight = model.embed_tokens.weight
    weight *= SPREAD / weight.std()
    weight[:, 0] = CONSTANT
    weight[:, TOKEN.stop :] *= 0.05
    model.norm.weight.fill_(CONFIDENCE)
    codes = torch.randn(2, N_CODE, TOKEN.stop - TOKEN.start) * CODE
    first, second = (model.layers[i].self_attn for i in range(2))
    _look_back(first)
    _carry(first, codes)
    _match(second, codes)
    _copy(second)


def _look_back(attention: Attention) -> None:
    """Make heads 0 and 1 attend one and two positions back: constant queries and keys, turned by so many steps."""
    n_pairs = attention.shape.head_dim // 2
    angles = attention.shape.rope_theta ** -(torch.arange(N_NEAR) / n_pairs)
    _constant(attention.q_proj.weight[: 2 * n_pairs], 0 * angles)
    _constant(attention.q_proj.weight[2 * n_pairs : 4 * n_pairs], -angles)
    _constant(attention.k_proj.weight[: 2 * n_pairs], angles)


def _constant(rows: Tensor, angles: Tensor) -> None:
    """Make a head's projection a constant vector with these angles in its near pairs."""
    n_pairs = len(rows) // 2
    rows.zero_()
    rows[: len(angles), 0] = SHARPNESS * angles.cos()
    rows[n_pairs : n_pairs + len(angles), 0] = SHARPNESS * angles.sin()


def _carry(attention: Attention, codes: Tensor) -> None:
    """Make heads 0 and 1 write codes of the tokens that they attend to."""
    size = attention.shape.head_dim
    first, second = slice(0, N_CODE), slice(N_CODE, 2 * N_CODE)
    attention.v_proj.weight[first, TOKEN], attention.v_proj.weight[second, TOKEN] = codes[0], codes[1]
    attention.o_proj.weight[ONE_BACK, :N_CODE] = SPREAD * torch.eye(N_CODE)
    attention.o_proj.weight[ONE_BACK_TOO, second] = SPREAD * torch.eye(N_CODE)
    attention.o_proj.weight[TWO_BACK, size + N_CODE : size + 2 * N_CODE] = SPREAD * torch.eye(N_CODE)


def _match(attention: Attention, codes: Tensor) -> None:
    """Make head 0 compare the codes of the current token and the one before with those of the two before each
    position."""
    n_pairs = attention.shape.head_dim // 2
    far = torch.cat((torch.arange(FIRST_FAR, n_pairs), torch.arange(n_pairs + FIRST_FAR, 2 * n_pairs)))
    attention.q_proj.weight[: 2 * n_pairs] = 0
    attention.k_proj.weight[: 2 * n_pairs] = 0
    attention.q_proj.weight[far, TOKEN] = 1.6 * codes[0]
    attention.q_proj.weight[far, ONE_BACK_TOO] = torch.eye(N_CODE)
    attention.k_proj.weight[far, ONE_BACK] = MATCH * torch.eye(N_CODE)
    attention.k_proj.weight[far, TWO_BACK] = MATCH * torch.eye(N_CODE)


def _copy(attention: Attention) -> None:
    """Make head 0 write the token that it attends to where the output layer reads it."""
    basis = torch.linalg.qr(torch.randn(TOKEN.stop - TOKEN.start, attention.shape.head_dim)).Q.T
    attention.v_proj.weight[: attention.shape.head_dim, TOKEN] = basis
    attention.o_proj.weight[TOKEN, : attention.shape.head_dim] = 8 * SPREAD * basis.T
