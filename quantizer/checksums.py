"""CRC-32 of a whole from those of its pieces, so that several threads can compute them. Pure.

Bytes put after a piece multiply its checksum, a polynomial over two elements, by x once for each bit.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["joined"]

# Bit 31 is the coefficient of x⁰, as in the checksum itself
_POLYNOMIAL = 0xEDB88320
_ONE, _X_8 = 1 << 31, 1 << 23
_MASK = 0xFFFFFFFF


def joined(first: int, second: int, n_bytes: int) -> int:
    """The checksum of two pieces from the checksum of each; the second has `n_bytes`."""
    return _product(first, _shift(n_bytes)) ^ second


@lru_cache
def _shift(n_bytes: int) -> int:
    """The factor x⁸ to the power of `n_bytes`, by squaring."""
    power, square = _ONE, _X_8
    while n_bytes:
        if n_bytes & 1:
            power = _product(power, square)
        square = _product(square, square)
        n_bytes >>= 1
    return power


def _product(first: int, second: int) -> int:
    product = 0
    while first:
        if first & _ONE:
            product ^= second
        second = second >> 1 ^ (_POLYNOMIAL if second & 1 else 0)
        first = first << 1 & _MASK
    return product
