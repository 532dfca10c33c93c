"""Small whole numbers packed into 32-bit words."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["WORD_BITS", "unpack_bits"]

WORD_BITS = 32


def unpack_bits(words: npt.NDArray[np.uint32], n_bits: int) -> npt.NDArray[np.uint8]:
    """Fields of `n_bits` (1 to 8) along the last axis, lowest bits first, running on from word to word.

    [..., n_words] becomes [..., n_words * 32 // n_bits].
    """
    n_fields = words.shape[-1] * WORD_BITS // n_bits
    period = n_bits // math.gcd(n_bits, WORD_BITS)
    missing = -words.shape[-1] % period
    if missing:
        words = np.concatenate([words, np.zeros((*words.shape[:-1], missing), np.uint32)], axis=-1)
    groups = words.reshape(*words.shape[:-1], -1, period)
    fields = np.empty((*groups.shape[:-1], period * WORD_BITS // n_bits), np.uint8)
    for i in range(fields.shape[-1]):
        word, shift = divmod(i * n_bits, WORD_BITS)
        field = groups[..., word] >> np.uint32(shift)
        if shift + n_bits > WORD_BITS:
            field = field | groups[..., word + 1] << np.uint32(WORD_BITS - shift)
        fields[..., i] = field & np.uint32((1 << n_bits) - 1)
    return fields.reshape(*words.shape[:-1], -1)[..., :n_fields]
