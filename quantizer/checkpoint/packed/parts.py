"""The stored tensors of a packed checkpoint; each format takes those that make up its weights.

Owns the check that a part exists, in the required type and shape, reading parts as arrays, and the tables of eight-bit
floats. Shapes are in the order of the checkpoint (rows before columns), as the formats are described. Source of the
tables: the OCP 8-bit floating point and microscaling specifications.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from quantizer.convert.source_model import FileTensor
from quantizer.errors import CheckpointError
from quantizer.write.dtype_conversion import to_float32

__all__ = ["FLOAT8", "FLOATS", "Dims", "Parts", "array", "dims", "malformed", "unsupported"]

_CODES = np.arange(256)


def _e4m3() -> npt.NDArray[np.float32]:
    """Return one sign, four bits of exponent (bias 7), three of mantissa; all ones is NaN and nothing is infinite."""
    exponents, mantissas = _CODES >> 3 & 15, _CODES & 7
    magnitudes = np.where(exponents > 0, np.ldexp(8 + mantissas, exponents - 10), np.ldexp(mantissas, -9))
    magnitudes[_CODES & 127 == 127] = np.nan
    signs = np.where(_CODES < 128, 1, -1)
    values: npt.NDArray[np.float32] = (signs * magnitudes).astype(np.float32)
    return values


def _e5m2() -> npt.NDArray[np.float32]:
    """Return the upper half of a half-precision float."""
    return (_CODES << 8).astype(np.uint16).view(np.float16).astype(np.float32)


def _e8m0() -> npt.NDArray[np.float32]:
    """Return a power of two (bias 127), no sign; all ones is NaN."""
    powers = np.ldexp(np.float64(1), _CODES - 127)
    powers[255] = np.nan
    return powers.astype(np.float32)


FLOAT8 = {"F8_E4M3": _e4m3(), "F8_E5M2": _e5m2(), "F8_E8M0": _e8m0()}


Dims = tuple[int, ...]

FLOATS = ("F32", "F16", "BF16")
_INTEGERS = {"U8": "u1", "I8": "i1", "I32": "<u4", "I64": "<i8"}


class Parts:
    """Tensors by name, until a format takes them; what is left over are plain weights."""

    def __init__(self, tensors: Mapping[str, FileTensor]) -> None:
        self.left = dict(tensors)

    def bases(self, ending: str) -> list[str]:
        """Return the names that end so, without the ending."""
        return [name.removesuffix(ending) for name in self.left if name.endswith(ending)]

    def take(self, name: str, kinds: Collection[str], *shapes: Dims) -> FileTensor:
        """Return the tensor, which is stored as one of `kinds` and in one of `shapes` (none given: any).

        Raises CheckpointError naming it when it is missing or something else.
        """
        tensor = self.left.pop(name, None)
        if tensor is None:
            raise malformed(f"The tensor {name!r} is missing")
        if tensor.stored.name not in kinds:
            raise malformed(f"The tensor {name!r} is stored as {tensor.stored.name}, not as {' or '.join(kinds)}")
        if shapes and dims(tensor) not in shapes:
            raise malformed(f"The tensor {name!r} is {_times(dims(tensor))}, not {_times(shapes[0])}")
        return tensor

    def matrix(self, name: str, kinds: Collection[str]) -> tuple[FileTensor, int, int]:
        """Return like `take`: a tensor of two dimensions, with its numbers of rows and columns."""
        tensor = self.take(name, kinds)
        if len(tensor.shape) != 2:
            raise malformed(f"The tensor {name!r} is {_times(dims(tensor))}, not a matrix")
        n_rows, n_columns = dims(tensor)
        return tensor, n_rows, n_columns

    def optional(self, name: str, kinds: Collection[str], *shapes: Dims) -> FileTensor | None:
        """Return like `take`, None when it is missing."""
        return self.take(name, kinds, *shapes) if name in self.left else None

    def drop(self, endings: tuple[str, ...]) -> None:
        """Remove tensors that do not affect the weights, such as the scales of activations."""
        self.left = {name: tensor for name, tensor in self.left.items() if not name.endswith(endings)}


def dims(tensor: FileTensor) -> Dims:
    """Return the shape as the checkpoint has it."""
    return tuple(reversed(tensor.shape))


def array(tensor: FileTensor, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
    """Return rows of the first dimension: floats of any size as float32, I32 as unsigned words."""
    rows = (dims(tensor)[0] if stop is None else stop) - start
    n_bytes = tensor.stored.tensor_bytes(tensor.shape) // dims(tensor)[0]
    first = tensor.start + start * n_bytes
    data = tensor.source.read(first, first + rows * n_bytes)
    if len(data) != rows * n_bytes:
        raise malformed(f"The file ended in the middle of the tensor {tensor.name!r}")
    shape = (rows, *dims(tensor)[1:])
    kind = tensor.stored.name
    if kind in FLOAT8:
        return FLOAT8[kind][np.frombuffer(data, np.uint8)].reshape(shape)
    if kind in FLOATS:
        return to_float32(data, tensor.stored, math.prod(shape)).reshape(shape)
    return np.frombuffer(data, _INTEGERS[kind]).reshape(shape)


def malformed(cause: str) -> CheckpointError:
    """Return the error for a packed checkpoint that contradicts its config.json."""
    return CheckpointError(f"{cause}.", "Download the checkpoint again, or get its F16 or BF16 version.")


def unsupported(what: str) -> CheckpointError:
    """Return the error for an unsupported way of quantizing."""
    return CheckpointError(f"The {what} is not supported.", "Get the F16 or BF16 version of this model.")


def _times(shape: Dims) -> str:
    return " × ".join(map(str, shape))
