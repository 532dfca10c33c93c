"""Formats in which every tensor describes its own settings: torchao, bitsandbytes and HQQ.

torchao, as transformers 5 saves it: the parts of `up.weight` are `up._weight_qdata`, `up._weight_scale` and perhaps
`up._weight_zero_point`, described in the metadata of the files. Int8, intx and float8 have values with scales for
blocks; int4 two values to a byte, the first in the lower half, with scale and zero point in a column for each row of
the weight, or the same from 0 to 15 around 8 in the tiles that tensor cores read.

bitsandbytes: four-bit codes of a table (nf4, fp4), weight = table[code] * absmax, where absmax may itself be codes of a
table, scaled and shifted; or int8, weight = value * SCB / 127.

HQQ: weight = (code - zero) * scale, laid out as `group_size` columns (axis 1) or rows (axis 0); codes of rows that lie
far apart share a byte or a word, the first of them in the upper bits.

Source: torchao's safetensors_utils and the classes named below, FBGEMM's int4_row_quantize_zp, PyTorch's
matrix_to_m16n8k16_Bint4_layout; bitsandbytes' QuantState; hqq's Quantizer, BitPack and HQQLinear.state_dict.
"""

from __future__ import annotations

import json
import math
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
    Parts,
    Rows,
    array,
    block_counts,
    block_scales,
    computed_weight,
    dims,
    malformed,
    scaled_rows,
    spread_blocks,
    stored_rows,
    unpack_bits,
    unsupported,
    viewed,
)
from quantizer.convert.source_model import FileTensor

# (name of the weight, what its parts are called before their own names, its description, all parts) -> the weight
_Unpack: TypeAlias = Callable[[str, str, Config, Parts], FileTensor]


def unpack_torchao(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that the metadata describes as quantized. Raises CheckpointError for a class or a part."""
    del config  # the metadata describe each tensor
    if "tensor_names" not in parts.metadata:
        raise malformed("The safetensors of this torchao checkpoint lack the metadata that describes their tensors")
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
        raise malformed(f"The metadata of {name[:64]!r} has no attributes")
    return value["_type"], Config(attributes if isinstance(attributes, dict) else {})


def _blocks(name: str, prefix: str, settings: Config, parts: Parts, kinds: tuple[str, ...]) -> FileTensor:
    """Return a weight whose values take a byte each."""
    values = parts.take(f"{prefix}qdata", kinds)
    shape, block = dims(values), settings.sizes("block_size") or ()
    scales = block_scales(parts.take(f"{prefix}scale", FLOATS), shape, block)
    stored_zeros = parts.optional(f"{prefix}zero_point", ("I8", *FLOATS))
    zeros = None if stored_zeros is None else block_scales(stored_zeros, shape, block)
    return computed_weight(name, shape, scaled_rows, values, scales, zeros)


def _int4_rows(codes: FileTensor, *scales_and_zeros: BlockScales) -> Rows:
    """Return rows of pairs of signed values; scales and zero points lie [..., groups, rows]."""
    pairs = stored_rows(codes)
    numbers = ((blocks, np.swapaxes(array(blocks.stored), -1, -2)) for blocks in scales_and_zeros)
    scales, zeros = (spread_blocks(values, blocks.shape, blocks.block) for blocks, values in numbers)

    def rows(start: int, stop: int) -> npt.NDArray[np.float32]:
        stored = pairs(start, stop)
        codes = np.stack([stored & 15, stored >> 4 & 15], axis=-1).reshape(len(stored), -1).astype(np.int8)
        values = ((codes ^ 8) - 8).astype(np.float32)
        return values * scales.over(start, stop) + zeros.over(start, stop)

    return rows


def _int4(name: str, prefix: str, settings: Config, parts: Parts) -> FileTensor:
    codes = parts.take(f"{prefix}qdata", ("I8", "U8"))
    *leading, n_rows, n_bytes = (1, *dims(codes)) if len(codes.shape) == 1 else dims(codes)
    shape, block = (*leading, n_rows, 2 * n_bytes), settings.sizes("block_size") or ()
    is_grouped = len(block) == len(shape) and set(block[:-1]) == {1}
    if len(codes.shape) < 2 or not is_grouped or settings.sizes("shape") != shape:
        raise malformed(f"The tensor {codes.name!r} is not made of the pairs that the metadata describe")
    grid = (*leading, block_counts(shape, block)[-1], n_rows)
    stored = (parts.take(f"{prefix}{part}", FLOATS, grid) for part in ("scale", "zero_point"))
    return computed_weight(name, shape, _int4_rows, codes, *(BlockScales(each, shape, block) for each in stored))


_TILE_ROWS, _TILE_COLUMNS = 8, 128
_LANES, _WORDS = 32, 4  # each lane has a row and two neighbouring columns of eight, in four words
# the field of a word in which each of its eight values lies
_FIELDS = np.array([0, 4, 1, 5, 2, 6, 3, 7])


def _tiled_rows(words: FileTensor, scales_and_zeros: FileTensor, shape: Dims, group_size: int) -> Rows:
    """Return rows of tiles of 8 x 128, the last of which are cut; scales and zero points lie [..., groups, rows, 2]."""
    n_rows, n_columns = shape[-2:]
    n_padded = -(-n_rows // _TILE_ROWS) * _TILE_ROWS
    numbers = np.swapaxes(array(scales_and_zeros), -2, -3)
    numbers = numbers.reshape(-1, *numbers.shape[-2:])
    tiles, groups = stored_rows(words, 3), np.arange(n_columns) // group_size

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
    return computed_weight(name, shape, _tiled_rows, words, numbers, shape, size)


_CLASSES: dict[str, _Unpack] = {
    "Float8Tensor": partial(_blocks, kinds=("F8_E4M3", "F8_E5M2")),
    "Int4Tensor": _int4,
    "Int4TilePackedTo4dTensor": _tiled,
    "Int8Tensor": partial(_blocks, kinds=("I8",)),
    "IntxUnpackedToInt8Tensor": partial(_blocks, kinds=("I8",)),
}


_STATES = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")
_MAX_STATE_BYTES = 1 << 16
_ROW_MAJOR = 0
_RECIPROCAL = np.float32(1 / 127)


@dataclass(frozen=True, slots=True)
class _Magnitudes:
    """absmax as float32, one for each block; `codes` of a table where `table` is there, in blocks of `block`."""

    codes: FileTensor
    table: FileTensor | None = None
    scales: FileTensor | None = None
    block: int = 0
    offset: float = 0.0

    def open(self) -> npt.NDArray[np.float32]:
        codes: npt.NDArray[np.float32] = array(self.codes)
        if self.table is None or self.scales is None:
            return codes
        scales = array(self.scales)[np.arange(len(codes)) // self.block]
        values: npt.NDArray[np.float32] = array(self.table)[codes] * scales + np.float32(self.offset)
        return values


def _four_bit_rows(
    stored_codes: FileTensor, stored_table: FileTensor, stored_magnitudes: _Magnitudes, block: int, n_columns: int
) -> Rows:
    """Return rows of two codes to a byte, the first in the upper half, in blocks that take no notice of rows."""
    table, magnitudes = array(stored_table), stored_magnitudes.open()

    def rows(start: int, stop: int) -> npt.NDArray[np.float32]:
        first, last = start * n_columns, stop * n_columns
        pairs = array(stored_codes, first // 2, -(-last // 2)).reshape(-1)
        codes = np.stack([pairs >> 4, pairs & 15], axis=-1).reshape(-1)[first % 2 :][: last - first]
        values = table[codes] * magnitudes[np.arange(first, last) // block]
        return values.reshape(-1, n_columns)

    return rows


def _eight_bit_rows(stored: FileTensor, stored_magnitudes: FileTensor, layout: FileTensor | None) -> Rows:
    """Read the magnitudes of rows. Raises CheckpointError when the bytes are laid out for a certain GPU."""
    if layout is not None and array(layout).item() != _ROW_MAJOR:
        raise malformed(f"The tensor {stored.name!r} is laid out for a certain GPU")
    magnitudes, values = array(stored_magnitudes)[:, None], stored_rows(stored)
    return lambda start, stop: values(start, stop) * magnitudes[start:stop] * _RECIPROCAL


def unpack_bitsandbytes(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that has a quant_state or a row of magnitudes. Raises CheckpointError for a part."""
    del config  # every tensor names its own format
    for ending in _STATES:
        for name in parts.bases(ending):
            yield _four_bits(name, parts.take(name + ending, ("U8",)), parts)
    for name in parts.bases(".SCB"):
        values, n_rows, n_columns = parts.matrix(f"{name}.weight", ("I8",))
        magnitudes = parts.take(f"{name}.SCB", ("F32",), (n_rows,))
        layout = parts.optional(f"{name}.weight_format", ("U8",), (1,))
        yield computed_weight(values.name, (n_rows, n_columns), _eight_bit_rows, values, magnitudes, layout)


def _four_bits(name: str, stored_state: FileTensor, parts: Parts) -> FileTensor:
    state = _state(stored_state)
    shape, block = state.sizes("shape") or (), state.integer("blocksize")
    if len(shape) != 2 or not block:
        raise malformed(f"The tensor {stored_state.name!r} does not describe a matrix")
    n_bytes, n_blocks = -(-math.prod(shape) // 2), -(-math.prod(shape) // block)
    codes = parts.take(name, ("U8",), (n_bytes, 1))
    table = parts.take(f"{name}.quant_map", ("F32",), (16,))
    magnitudes = _magnitudes(name, n_blocks, state, parts)
    return computed_weight(name, shape, _four_bit_rows, codes, table, magnitudes, block, shape[1])


def _magnitudes(name: str, n_blocks: int, state: Config, parts: Parts) -> _Magnitudes:
    block = state.optional_integer("nested_blocksize")
    if not block:
        return _Magnitudes(parts.take(f"{name}.absmax", ("F32",), (n_blocks,)))
    return _Magnitudes(
        parts.take(f"{name}.absmax", ("U8",), (n_blocks,)),
        parts.take(f"{name}.nested_quant_map", ("F32",), (256,)),
        parts.take(f"{name}.nested_absmax", ("F32",), (-(-n_blocks // block),)),
        block,
        state.number("nested_offset"),
    )


def _state(stored: FileTensor) -> Config:
    if dims(stored)[0] > _MAX_STATE_BYTES:
        raise malformed(f"The tensor {stored.name!r} is too large")
    try:
        state = json.loads(array(stored).tobytes())
    except (ValueError, RecursionError) as error:
        raise malformed(f"The tensor {stored.name!r} is not valid JSON") from error
    if not isinstance(state, dict):
        raise malformed(f"The tensor {stored.name!r} is not an object")
    return Config(state)


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


def _hqq_rows(
    stored: FileTensor, scales: FileTensor, zeros: FileTensor, n_bits: int, n_per_word: int, n_columns: int
) -> Rows:
    """Read all, packed over [n_rows of the layout, its width]: rows of the weight lie across all of it. Scales and
    zeros have a number for each row or column of the layout."""
    words, numbers = array(stored), (array(zeros), array(scales))
    n_words, width = words.shape
    mask = words.dtype.type((1 << n_bits) - 1)

    def rows(start: int, stop: int) -> npt.NDArray[np.float32]:
        first, last = start * n_columns, stop * n_columns
        places = np.arange(first // width, -(-last // width))
        shifts = (n_per_word - 1 - places // n_words) * n_bits
        codes = words[places % n_words] >> shifts.astype(words.dtype)[:, None] & mask
        zeros_here, scales_here = (each if each.shape[1] == width else each[places] for each in numbers)
        values: npt.NDArray[np.float32] = codes.astype(np.float32) - zeros_here
        values *= scales_here
        return values.reshape(-1)[first - places[0] * width :][: last - first].reshape(-1, n_columns)

    return rows


def unpack_hqq(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that is stored as W_q, scale and zero. Raises CheckpointError naming what does not fit."""
    del config  # every layer has its own settings
    for name in parts.bases(".W_q"):
        yield _hqq_weight(name, parts)
        for note in _NOTES:
            parts.left.pop(f"{name}.{note}", None)


def _hqq_weight(name: str, parts: Parts) -> FileTensor:
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
    return computed_weight(f"{name}.weight", shape, _hqq_rows, codes, scales, zeros, n_bits, n_per_word, shape[1])


def _layout(name: str, shape: Dims, axis: int, stored_size: FileTensor | None) -> Dims:
    """Return the rows and columns that the weight is laid out in."""
    size = None if stored_size is None else _number(stored_size)
    n = math.prod(shape)
    if min(shape) < 1 or (size is not None and (size < 1 or n % size)):
        raise malformed(f"The layer {name!r} is {shape[0]} × {shape[1]}, not a multiple of the group size {size}")
    if size is None:
        return shape
    return (n // size, size) if axis else (size, n // size)


def _number(tensor: FileTensor) -> int:
    return int(array(tensor).item())


def _text(tensor: FileTensor) -> str:
    n_bytes = math.prod(dims(tensor))
    return array(tensor).tobytes().decode("ascii", "replace") if n_bytes <= _MAX_TEXT_BYTES else ""
