"""The stored tensors of a packed checkpoint, of which each format takes the parts of its weights, and those weights.

Owns the check that a part exists, in the required type and shape, reading parts as arrays, and the tables of eight-bit
floats. Shapes are in the order of the checkpoint (rows before columns), as the formats are described. Source of the
tables: the OCP 8-bit floating point and microscaling specifications.

The rows of a weight are computed when they are read, as if they lay in a file, so a packed weight is a FileTensor like
any other: it can be renamed, reordered, stacked and cut. Data that rows share (scales, or everything where rows lie
across the file) is read with the first row and freed after the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from quantizer.convert.source_model import FileTensor
from quantizer.errors import CheckpointError
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.write.dtype_conversion import to_float32

__all__ = [
    "FLOAT8",
    "FLOATS",
    "Dims",
    "Parts",
    "RowFile",
    "Rows",
    "array",
    "computed_weight",
    "dims",
    "malformed",
    "stored_rows",
    "unsupported",
]

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


# (start, stop) -> those rows of a weight, its leading dimensions taken as rows
Rows: TypeAlias = Callable[[int, int], npt.NDArray[Any]]


class RowFile:
    """A file of `n_rows` rows of `row_bytes`, computed from `parts`; `open_rows` reads what they share."""

    def __init__(self, n_rows: int, row_bytes: int, open_rows: Callable[[], Rows], parts: object) -> None:
        self.n_bytes = n_rows * row_bytes
        self.parts = parts
        self._row_bytes = row_bytes
        self._open_rows = open_rows
        self._rows: Rows | None = None

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop), fewer at the end. Raises UserError when the rows cannot be had."""
        stop = min(stop, self.n_bytes)
        if start >= stop:
            return b""
        first, last = start // self._row_bytes, -(-stop // self._row_bytes)
        rows = self._rows or self._open_rows()
        data = rows(first, last).tobytes()
        self._rows = None if stop == self.n_bytes else rows
        return data[start - first * self._row_bytes :][: stop - start]


def computed_weight(name: str, shape: Dims, open_rows: Callable[[], Rows], stored: str = "F32") -> FileTensor:
    """Return the weight `name` of `shape` (columns last), whose rows are computed as `stored`.

    `open_rows` is the method of a dataclass that holds the stored tensors.
    Reading it raises CheckpointError where float32 rows are not finite.
    """
    kind = tensor_type_named(stored)
    opened = _finite(name, open_rows) if stored == "F32" else open_rows
    source = RowFile(math.prod(shape[:-1]), kind.row_bytes(shape[-1]), opened, getattr(open_rows, "__self__", ()))
    return FileTensor(name, tuple(reversed(shape)), kind, source, 0)


def stored_rows(tensor: FileTensor, n_inner: int = 1) -> Rows:
    """Return the rows as they are stored, all dimensions but the last `n_inner` taken as rows."""
    flat = replace(tensor, shape=(*tensor.shape[:n_inner], math.prod(tensor.shape[n_inner:])))
    return partial(array, flat)


def _finite(name: str, open_rows: Callable[[], Rows]) -> Callable[[], Rows]:
    quiet = np.errstate(over="ignore", invalid="ignore")

    def opened() -> Rows:
        rows = quiet(open_rows)()

        def checked(start: int, stop: int) -> npt.NDArray[Any]:
            values = quiet(rows)(start, stop)
            if not np.isfinite(values).all():
                raise malformed(f"The tensor {name} holds NaN or infinite weights")
            return values

        return checked

    return opened
