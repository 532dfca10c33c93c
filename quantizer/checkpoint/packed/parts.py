"""The stored tensors of a packed checkpoint, of which each format takes the parts of its weights, and those weights.

Owns the check that a part exists, in the required type and shape, reading parts as arrays (codes packed into 32-bit
words, scales and zero points for blocks of a weight), and the tables of eight-bit floats. Shapes are in the order of
the checkpoint (rows before columns), as the formats are described. Source of the tables: the OCP 8-bit floating point
and microscaling specifications.

The rows of a weight are computed when they are read, as if they lay in a file, so a packed weight is a FileTensor like
any other: it can be renamed, reordered, stacked and cut. Data that rows share (scales, or everything where rows lie
across the file) is read with the first row and freed after the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import CheckpointError
from quantizer.checkpoint.safetensors import STORED_TYPES
from quantizer.convert.source_model import FileTensor
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.write.dtype_conversion import to_float32

_CODES = np.arange(256)


def _e4m3() -> npt.NDArray[np.float32]:
    """Return one sign, four bits of exponent (bias 7), three of mantissa; all ones is NaN and nothing is infinite."""
    exponents, mantissas = _CODES >> 3 & 15, _CODES & 7
    magnitudes = np.where(exponents > 0, np.ldexp(8 + mantissas, exponents - 10), np.ldexp(mantissas, -9))
    magnitudes[_CODES & 127 == 127] = np.nan
    signs = np.where(_CODES < 128, 1, -1)
    values: npt.NDArray[np.float32] = (signs * magnitudes).astype(np.float32)
    return values


FLOAT8: dict[str, npt.NDArray[np.float32]] = {
    "F8_E4M3": _e4m3(),
    # the upper half of a half-precision float
    "F8_E5M2": (_CODES << 8).astype(np.uint16).view(np.float16).astype(np.float32),
    # a power of two (bias 127), no sign; all ones is NaN
    "F8_E8M0": np.append(np.ldexp(1.0, _CODES[:-1] - 127), np.nan).astype(np.float32),
}
_HALF = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FLOAT4 = np.concatenate([_HALF, -_HALF])


def four_bit_floats(pairs: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return two floats (E2M1) for each byte, the first from its lower half."""
    return _FLOAT4[np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(len(pairs), -1)]


Dims = tuple[int, ...]
FLOATS = ("F32", "F16", "BF16")
_INTEGERS = {"U8": "u1", "I8": "i1", "I32": "<u4", "I64": "<i8"}


class Parts:
    """Tensors by name, until a format takes them: those left are plain weights. `metadata` is that of the headers."""

    def __init__(self, tensors: Mapping[str, FileTensor], metadata: Mapping[str, str]) -> None:
        self.left = dict(tensors)
        self.metadata = metadata

    def bases(self, ending: str) -> list[str]:
        """Return the names that end so, without the ending."""
        return [name.removesuffix(ending) for name in self.left if name.endswith(ending)]

    def take(self, name: str, kinds: Collection[str], *shapes: Dims) -> FileTensor:
        """Return the tensor. Raises CheckpointError unless it is one of `kinds` and of `shapes` (none given: any)."""
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
    """Return the shape in the checkpoint's order."""
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


def viewed(tensor: FileTensor, kind: str) -> FileTensor:
    """Return the same bytes as rows of `kind`, a type of safetensors."""
    n_bytes = tensor.stored.row_bytes(tensor.shape[0])
    stored = STORED_TYPES[kind]
    return replace(tensor, shape=(n_bytes // stored.block_bytes, *tensor.shape[1:]), stored=stored)


def malformed(cause: str) -> CheckpointError:
    return CheckpointError(f"{cause}.", "Download the checkpoint again, or get its F16 or BF16 version.")


def unsupported(what: str) -> CheckpointError:
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


def computed_weight(
    name: str, shape: Dims, open_rows: Callable[..., Rows], *parts: object, stored: str = "F32"
) -> FileTensor:
    """Return the weight `name` of `shape` (columns last), whose rows `open_rows(*parts)` computes as `stored`. Reading
    it raises CheckpointError where float32 rows are not finite."""
    kind, opened = tensor_type_named(stored), partial(open_rows, *parts)
    source = RowFile(
        math.prod(shape[:-1]),
        kind.row_bytes(shape[-1]),
        _finite(name, opened) if stored == "F32" else opened,
        parts,
    )
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


WORD_BITS = 32


def unpack_bits(words: npt.NDArray[np.uint32], n_bits: int) -> npt.NDArray[np.uint8]:
    """Return fields of `n_bits` (1 to 8) along the last axis, lowest bits first, running on from word to word. [...,
    n_words] becomes [..., n_words * 32 // n_bits]."""
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


@dataclass(frozen=True, slots=True)
class Grid:
    """Values for blocks of a weight: values[row_blocks[i], column_blocks[j]] belongs to element (i, j)."""

    values: npt.NDArray[np.float32]
    row_blocks: npt.NDArray[np.intp]
    column_blocks: npt.NDArray[np.intp]

    def over(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Return those of the rows [start, stop), in one column where all columns share them."""
        values = self.values[self.row_blocks[start:stop]]
        return values if values.shape[1] == 1 else values[:, self.column_blocks]


def apply_scales(codes: Rows, scales: Grid, zeros: Grid | None = None) -> Rows:
    """Return (code - zero) * scale, in float32."""

    def rows(start: int, stop: int) -> npt.NDArray[np.float32]:
        values = codes(start, stop).astype(np.float32)
        if zeros is not None:
            values -= zeros.over(start, stop)
        return values * scales.over(start, stop)

    return rows


def block_counts(shape: Dims, block: Dims) -> Dims:
    """Return number of blocks in each dimension; the last block may be cut."""
    return tuple(-(-n // length) for n, length in zip(shape, block, strict=True))


def spread_blocks(values: npt.NDArray[np.float32], shape: Dims, block: Dims) -> Grid:
    """Lay out one value for each block, in any shape, over a weight of `shape`."""
    counts = block_counts(shape, block)
    places = [np.arange(n) // length for n, length in zip(shape, block, strict=True)]
    row_blocks = np.arange(math.prod(counts[:-1])).reshape(counts[:-1])[np.ix_(*places[:-1])]
    return Grid(values.reshape(-1, counts[-1]), row_blocks.reshape(-1), places[-1])


@dataclass(frozen=True, slots=True)
class BlockScales:
    """Values stored for each `block` of a weight of `shape`."""

    stored: FileTensor
    shape: Dims
    block: Dims

    def open(self) -> Grid:
        return spread_blocks(array(self.stored).astype(np.float32), self.shape, self.block)


def block_scales(stored: FileTensor, shape: Dims, block: Dims) -> BlockScales:
    """Return scales, perhaps without trailing dimensions of one. Raises CheckpointError unless each block has one."""
    if len(shape) != len(block) or _without_last_ones(dims(stored)) != _without_last_ones(block_counts(shape, block)):
        raise malformed(f"The tensor {stored.name!r} does not have one number for each block of its weight")
    return BlockScales(stored, shape, block)


def scaled_rows(values: FileTensor, scales: BlockScales, zeros: BlockScales | None = None) -> Rows:
    """Read the scales and zero points of blocks, and return the rows of stored values that they apply to."""
    return apply_scales(stored_rows(values), scales.open(), zeros.open() if zeros else None)


def column_groups(stored: FileTensor, n_groups: int) -> npt.NDArray[np.intp]:
    """Return the group of each column, as activation order leaves it. Raises CheckpointError for an unknown group."""
    groups = array(stored)
    if groups.max() >= n_groups:
        raise malformed(f"The tensor {stored.name!r} refers to groups beyond the {n_groups} that exist")
    return groups.astype(np.intp)


def _without_last_ones(shape: Dims) -> Dims:
    n_kept = max((i + 1 for i, n in enumerate(shape) if n != 1), default=0)
    return shape[:n_kept]
