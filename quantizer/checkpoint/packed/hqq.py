"""HQQ: whole numbers with a scale and a zero point for each group, down the columns of a matrix or along its rows.

weight = (code - zero) * scale. The weight is laid out as `group_size` columns (axis 1) or `group_size` rows (axis 0);
the codes of rows that lie far apart share a byte or a word, the first of them in the upper bits. Each layer stores its
own settings as tensors. Source: hqq's Quantizer, BitPack and HQQLinear.state_dict, which transformers saves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.parts import (
    FLOATS,
    Dims,
    Parts,
    Rows,
    array,
    computed_weight,
    dims,
    malformed,
    unsupported,
    viewed,
)
from quantizer.convert.source_model import FileTensor

# packing -> (bits of a code, codes in a byte or word, its type)
_PACKINGS = {
    "8bit_u8": (8, 1, "U8"),
    "4bit_u8": (4, 2, "U8"),
    "3bit_32": (3, 10, "I32"),
    "2bit_u8": (2, 4, "U8"),
    "1bit_u8": (1, 8, "U8"),
}
_MAX_TEXT_BYTES = 64
# what a layer says about itself that changes no weight
_NOTES = (
    *("nbits", "unpack_view_dtype", "view_as_float", "quant_scale", "quant_zero", "compute_dtype", "offload_meta"),
    *("encoded_state_dict", "stores_quant_config", "channel_wise", "optimize", "round_zero"),
)


@dataclass(frozen=True, slots=True)
class _Weight:
    """Codes packed over [n_rows of the layout, its width], and numbers for its rows or columns."""

    codes: FileTensor
    scales: FileTensor
    zeros: FileTensor
    n_bits: int
    n_per_word: int
    n_columns: int

    def open(self) -> Rows:
        """Read all of it, packed: rows of the weight lie across the whole of `codes`."""
        words, scales, zeros = array(self.codes), array(self.scales), array(self.zeros)
        n_words, width = words.shape
        mask = words.dtype.type((1 << self.n_bits) - 1)

        def of_rows(values: npt.NDArray[np.float32], places: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
            return values if values.shape[1] == width else values[places]

        def rows(start: int, stop: int) -> npt.NDArray[np.float32]:
            first, last = start * self.n_columns, stop * self.n_columns
            places = np.arange(first // width, -(-last // width))
            shifts = (self.n_per_word - 1 - places // n_words) * self.n_bits
            codes = words[places % n_words] >> shifts.astype(words.dtype)[:, None] & mask
            values: npt.NDArray[np.float32] = codes.astype(np.float32) - of_rows(zeros, places)
            values *= of_rows(scales, places)
            return values.reshape(-1)[first - places[0] * width :][: last - first].reshape(-1, self.n_columns)

        return rows


def unpack(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that is stored as W_q, scale and zero. Raises CheckpointError naming what does not fit."""
    del config  # every layer has its own settings
    for name in parts.bases(".W_q"):
        yield _weight(name, parts)
        for note in _NOTES:
            parts.left.pop(f"{name}.{note}", None)


def _weight(name: str, parts: Parts) -> FileTensor:
    shape = tuple(int(n) for n in array(parts.take(f"{name}.shape", ("I64", "I32"), (2,))))
    packing, axis = _text(parts.take(f"{name}.packing", ("U8",))), _number(parts.take(f"{name}.axis", ("I32",), (1,)))
    if packing not in _PACKINGS or axis not in (0, 1):
        raise unsupported(f"HQQ packing {packing!r} of axis {axis}")
    n_bits, n_per_word, kind = _PACKINGS[packing]
    layout = _layout(name, shape, axis, parts.optional(f"{name}.group_size", ("I32",), (1,)))
    codes = parts.take(f"{name}.W_q", (kind, *FLOATS))
    codes = viewed(codes, kind) if len(codes.shape) == 2 else codes
    if dims(codes) != (-(-layout[0] // n_per_word), layout[1]):
        raise malformed(f"The tensor {codes.name!r} does not hold {shape[0]} × {shape[1]} numbers of {n_bits} bits")
    grid = (layout[0], 1) if axis else (1, layout[1])
    scales, zeros = (parts.take(f"{name}.{part}", FLOATS, grid) for part in ("scale", "zero"))
    weight = _Weight(codes, scales, zeros, n_bits, n_per_word, shape[1])
    return computed_weight(f"{name}.weight", shape, weight.open)


def _layout(name: str, shape: Dims, axis: int, stored_size: FileTensor | None) -> Dims:
    """Return the rows and columns that the weight is laid out in."""
    size = None if stored_size is None else _number(stored_size)
    n = math.prod(shape)
    if min(shape) < 1 or (size is not None and (size < 1 or n % size)):
        raise malformed(f"The layer {name!r} is {shape[0]} × {shape[1]}, no groups of {size}")
    if size is None:
        return shape
    return (n // size, size) if axis else (size, n // size)


def _number(tensor: FileTensor) -> int:
    return int(array(tensor).item())


def _text(tensor: FileTensor) -> str:
    n_bytes = math.prod(dims(tensor))
    return array(tensor).tobytes().decode("ascii", "replace") if n_bytes <= _MAX_TEXT_BYTES else ""
