"""torchao's quantized tensors as transformers 5 saves them: parts by name, described in the metadata of the files.

The parts of `up.weight` are `up._weight_qdata`, `up._weight_scale` and perhaps `up._weight_zero_point`. Int8 and intx:
weight = (value - zero point) * scale for each block. Float8: weight = value * scale. Int4: two values to a byte, the
first in the lower half, and weight = value * scale + zero point, both with a column for each row of the weight; or
the same from 0 to 15 around 8, in the tiles that tensor cores read. Activations that are quantized on the way change no
weight. Source: torchao's safetensors_utils and the classes named below; FBGEMM's int4_row_quantize_zp; PyTorch's
matrix_to_m16n8k16_Bint4_layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.parts import (
    FLOATS,
    BlockScales,
    Dims,
    Grid,
    Parts,
    Rows,
    ScaledWeight,
    array,
    block_counts,
    block_scales,
    computed_weight,
    dims,
    malformed,
    spread_blocks,
    stored_rows,
    unpack_bits,
    unsupported,
)
from quantizer.convert.source_model import FileTensor

# (name of the weight, what its parts are called before their own names, its description, all parts) -> the weight
_Unpack: TypeAlias = Callable[[str, str, Config, Parts], FileTensor]


def unpack(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that the metadata describes as quantized.

    Raises CheckpointError naming a class that is not supported or the part that does not fit.
    """
    del config  # the metadata describe each tensor
    if "tensor_names" not in parts.metadata:
        raise malformed("The checkpoint is torchao's, but its safetensors do not describe their tensors")
    for name, text in parts.metadata.items():
        kind, settings = _described(name, text)
        if kind == "Tensor":
            continue
        module, dot, parameter = name.rpartition(".")
        prefix = f"{module}{dot}_{parameter}_"
        if kind not in _CLASSES:
            raise unsupported(f"class {kind[:64]!r} of torchao")
        if f"{prefix}act_pre_scale" in parts.left:
            raise unsupported("scaling of torchao's activations before a layer")
        yield _CLASSES[kind](name, prefix, settings, parts)


def _described(name: str, text: str) -> tuple[str, Config]:
    """Return the class of a tensor and its attributes; other metadata describe plain ones."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("_type"), str):
        return "Tensor", Config({})
    attributes = value.get("_data")
    if value["_type"] != "Tensor" and not isinstance(attributes, dict):
        raise malformed(f"The metadata of {name[:64]!r} have no attributes")
    return value["_type"], Config(attributes if isinstance(attributes, dict) else {})


def _blocks(name: str, prefix: str, settings: Config, parts: Parts, kinds: tuple[str, ...]) -> FileTensor:
    """Return a weight whose values take a byte each."""
    values = parts.take(f"{prefix}qdata", kinds)
    shape, block = dims(values), settings.sizes("block_size") or ()
    scales = block_scales(parts.take(f"{prefix}scale", FLOATS), shape, block)
    stored_zeros = parts.optional(f"{prefix}zero_point", ("I8", *FLOATS))
    zeros = None if stored_zeros is None else block_scales(stored_zeros, shape, block)
    return computed_weight(name, shape, ScaledWeight(values, scales, zeros).open)


@dataclass(frozen=True, slots=True)
class _Int4Weight:
    """Pairs of signed values; scales and zero points lie [..., groups, rows]."""

    codes: FileTensor
    scales: BlockScales
    zeros: BlockScales

    def open(self) -> Rows:
        scales, zeros = _turned(self.scales), _turned(self.zeros)
        pairs = stored_rows(self.codes)

        def rows(start: int, stop: int) -> npt.NDArray[np.float32]:
            stored = pairs(start, stop)
            codes = np.stack([stored & 15, stored >> 4 & 15], axis=-1).reshape(len(stored), -1).astype(np.int8)
            values = ((codes ^ 8) - 8).astype(np.float32)
            return values * scales.over(start, stop) + zeros.over(start, stop)

        return rows


def _turned(blocks: BlockScales) -> Grid:
    """Return numbers that are stored with a column for each row of the weight."""
    stored = array(blocks.stored).astype(np.float32)
    return spread_blocks(np.ascontiguousarray(np.swapaxes(stored, -1, -2)), blocks.shape, blocks.block)


def _int4(name: str, prefix: str, settings: Config, parts: Parts) -> FileTensor:
    codes = parts.take(f"{prefix}qdata", ("I8", "U8"))
    *leading, n_rows, n_bytes = (1, *dims(codes)) if len(codes.shape) == 1 else dims(codes)
    shape, block = (*leading, n_rows, 2 * n_bytes), settings.sizes("block_size") or ()
    is_grouped = len(block) == len(shape) and set(block[:-1]) == {1}
    if len(codes.shape) < 2 or not is_grouped or settings.sizes("shape") != shape:
        raise malformed(f"The tensor {codes.name!r} is not made of the pairs that the metadata describe")
    grid = (*leading, block_counts(shape, block)[-1], n_rows)
    scales, zeros = (
        BlockScales(parts.take(f"{prefix}{part}", FLOATS, grid), shape, block) for part in ("scale", "zero_point")
    )
    return computed_weight(name, shape, _Int4Weight(codes, scales, zeros).open)


_TILE_ROWS, _TILE_COLUMNS = 8, 128
_LANES, _WORDS = 32, 4  # each lane has a row and two neighbouring columns of eight, in four words
# the field of a word in which each of its eight values lies
_FIELDS = np.array([0, 4, 1, 5, 2, 6, 3, 7])


@dataclass(frozen=True, slots=True)
class _TiledWeight:
    """Words of tiles of 8 x 128, the last of which are cut; scales and zero points lie [..., groups, rows, 2]."""

    words: FileTensor
    scales_and_zeros: FileTensor
    shape: Dims
    group_size: int

    def open(self) -> Rows:
        n_rows, n_columns = self.shape[-2:]
        n_padded = -(-n_rows // _TILE_ROWS) * _TILE_ROWS
        numbers = np.swapaxes(array(self.scales_and_zeros), -2, -3)
        numbers = numbers.reshape(-1, *numbers.shape[-2:])
        tiles, groups = stored_rows(self.words, 3), np.arange(n_columns) // self.group_size

        def rows(start: int, stop: int) -> npt.NDArray[np.float32]:
            flat = np.arange(start, stop)
            padded = flat // n_rows * n_padded + flat % n_rows
            first, last = padded[0] // _TILE_ROWS, padded[-1] // _TILE_ROWS + 1
            codes = _untiled(tiles(int(first), int(last)))[padded - first * _TILE_ROWS, :n_columns]
            scales, zeros = (numbers[padded, :, part][:, groups] for part in (0, 1))
            values: npt.NDArray[np.float32] = (codes.astype(np.float32) - 8) * scales + zeros
            return values

        return rows


def _untiled(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Return the rows of [tiles of rows, tiles of columns, lanes, words]; a word has columns 0, 1, 8, 9 of two 16s."""
    fields = unpack_bits(words, 4).reshape(*words.shape[:2], _TILE_ROWS, 4, _WORDS, 8)[..., _FIELDS]
    split = fields.reshape(*fields.shape[:5], 2, 2, 2)  # [.., rows, pairs, words, sixteens, eights, columns of a pair]
    return split.transpose(0, 2, 1, 4, 5, 6, 3, 7).reshape(len(words) * _TILE_ROWS, -1)


def _tiled(name: str, prefix: str, settings: Config, parts: Parts) -> FileTensor:
    words = parts.take(f"{prefix}qdata", ("I32",))
    shape, block = settings.sizes("shape") or (), settings.sizes("block_size") or ()
    *leading, n_row_tiles, n_column_tiles, n_lanes, n_words = (*(0,) * 4, *dims(words))[-max(4, len(words.shape)) :]
    size, n_padded = (*block, 1)[len(block) - 1], n_column_tiles * _TILE_COLUMNS
    is_tiled = (n_lanes, n_words) == (_LANES, _WORDS) and len(block) == len(shape) >= 2 and set(block[:-1]) == {1}
    if not is_tiled or shape[:-2] != tuple(leading) or n_padded % size or shape[-1] > n_padded:
        raise malformed(f"The tensor {words.name!r} is not made of the tiles that the metadata describe")
    grid = (*leading, n_padded // size, n_row_tiles * _TILE_ROWS, 2)
    numbers = parts.take(f"{prefix}scale_and_zero", FLOATS, grid)
    if -(-shape[-2] // _TILE_ROWS) != n_row_tiles:
        raise malformed(f"The tensor {words.name!r} has {n_row_tiles} tiles for {shape[-2]} rows")
    return computed_weight(name, shape, _TiledWeight(words, numbers, shape, size).open)


_CLASSES: dict[str, _Unpack] = {
    "Float8Tensor": partial(_blocks, kinds=("F8_E4M3", "F8_E5M2")),
    "Int4Tensor": _int4,
    "Int4TilePackedTo4dTensor": _tiled,
    "Int8Tensor": partial(_blocks, kinds=("I8",)),
    "IntxUnpackedToInt8Tensor": partial(_blocks, kinds=("I8",)),
}
