"""Floats of eight bits, as tables of the 256 float32 values that they stand for.

Source: the OCP 8-bit floating point and microscaling specifications.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["FLOAT8"]

_CODES = np.arange(256)


def _e4m3() -> npt.NDArray[np.float32]:
    """One sign, four bits of exponent (bias 7), three of mantissa; all ones is NaN and nothing is infinite."""
    exponents, mantissas = _CODES >> 3 & 15, _CODES & 7
    magnitudes = np.where(exponents > 0, np.ldexp(8 + mantissas, exponents - 10), np.ldexp(mantissas, -9))
    magnitudes[_CODES & 127 == 127] = np.nan
    signs = np.where(_CODES < 128, 1, -1)
    values: npt.NDArray[np.float32] = (signs * magnitudes).astype(np.float32)
    return values


def _e5m2() -> npt.NDArray[np.float32]:
    """The upper half of a half-precision float."""
    return (_CODES << 8).astype(np.uint16).view(np.float16).astype(np.float32)


def _e8m0() -> npt.NDArray[np.float32]:
    """A power of two (bias 127), no sign; all ones is NaN."""
    powers = np.ldexp(np.float64(1), _CODES - 127)
    powers[255] = np.nan
    return powers.astype(np.float32)


FLOAT8 = {"F8_E4M3": _e4m3(), "F8_E5M2": _e5m2(), "F8_E8M0": _e8m0()}
