"""Weights stored as small floats or integers with scales beside them, and perhaps zero points.

weight = (value - zero point) * scale. FP8 of transformers, fbgemm and ModelOpt; compressed-tensors, which also packs
integers of less than eight bits along the rows of a matrix: packed values and zero points both count from -2^(bits -
1). Scales stored as bytes are powers of two (MXFP8). Where a checkpoint does not say what a scale is for, or its layers
differ, the shapes decide. MXFP4 has 32 four-bit floats and a power of two, and goes straight to ggml's MXFP4: a byte
holds neighbours in a checkpoint and elements 16 apart in ggml. NVFP4 has a scale in FP8 for each 16 floats and a factor
in float32 for the weight, whose reciprocal compressed-tensors stores. Source: transformers' finegrained_fp8, fbgemm_fp8
and mxfp4, ModelOpt's unified checkpoints, compressed-tensors' compressors, ggml's block_mxfp4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.parts import (
    FLOATS,
    WORD_BITS,
    BlockScales,
    Dims,
    Grid,
    Parts,
    Rows,
    apply_scales,
    array,
    block_counts,
    block_scales,
    column_groups,
    computed_weight,
    dims,
    four_bit_floats,
    malformed,
    scaled_rows,
    spread_blocks,
    stored_rows,
    unpack_bits,
    unsupported,
    viewed,
)
from quantizer.convert.source_model import FileTensor

_POWERS = ("F8_E8M0", "U8")
_SCALES = (*FLOATS, *_POWERS)
_SMALL_FLOATS = ("F8_E4M3", "F8_E5M2")
_NVFP4 = "nvfp4-pack-quantized"
_FORMATS = (
    *("float-quantized", "int-quantized", "mixed-precision", "mxfp4-pack-quantized", "mxfp8-quantized"),
    *("naive-quantized", "pack-quantized", _NVFP4),
)
_QUANT_ALGOS = (
    *(None, "FP8", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION", "MXFP8", "NVFP4"),
    *("NVFP4_AWQ", "W4A16_NVFP4"),
)
_DECISIVE = ("num_bits", "type", "strategy", "group_size", "block_structure", "symmetric")
# strategy -> (shape of a weight, settings) -> what one scale is for
_BLOCKS: dict[str, Callable[[Dims, Config], Dims]] = {
    "tensor": lambda shape, _settings: shape,
    "channel": lambda shape, _settings: (1,) * (len(shape) - 1) + shape[-1:],
    "group": lambda shape, settings: (1,) * (len(shape) - 1) + (max(1, settings.integer("group_size")),),
    "block": lambda shape, settings: (1,) * (len(shape) - 2) + (settings.sizes("block_structure") or ()),
}


def unpack_fp8(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that has a scale. Raises CheckpointError naming the part that does not fit."""
    sizes = config.sizes("weight_block_size")
    for ending in ("_scale_inv", "_scale"):
        for name in parts.bases(ending):
            if name in parts.left:
                yield _fp8(name, sizes, parts.take(name + ending, _SCALES), parts)


def _fp8(name: str, sizes: Dims | None, stored: FileTensor, parts: Parts) -> FileTensor:
    """Return a weight of small floats; bytes with powers of two are pairs of four bits, as in DeepSeek's experts."""
    values = parts.take(name, (*_SMALL_FLOATS, *(("I8",) if stored.stored.name in _POWERS else ())))
    if values.stored.name == "I8":
        return weight_of_rows(name, values, stored)
    shape, stored = dims(values), _scale_numbers(stored)
    if sizes is not None:
        scales = block_scales(stored, shape, (1,) * (len(shape) - len(sizes)) + sizes)
    else:
        if len(stored.shape) == 2 * len(shape) and set(dims(stored)[1::2]) == {1}:  # ModelOpt's, for blocks
            stored = replace(stored, shape=stored.shape[1::2])
        scales = block_scales(stored, shape, _evident_block(shape, dims(stored)))
    return computed_weight(name, shape, scaled_rows, values, scales)


def unpack_modelopt(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight in NVFP4, then those in FP8: a checkpoint may mix them. Raises as `unpack_fp8` does."""
    name = config.values.get("quant_algo")
    if name not in _QUANT_ALGOS:
        raise unsupported(f"quantization {str(name)[:64]!r} of ModelOpt")
    for base in parts.bases(_FACTOR):
        yield _nvfp4_weight(base, base, _FACTOR, parts)
    yield from unpack_fp8(config, parts)


def _evident_block(shape: Dims, scales: Dims) -> Dims:
    """Return the block of one scale where each dimension is cut evenly, else a block that fits no scales."""
    counts = (*scales, *(1,) * (len(shape) - len(scales)))
    if len(counts) != len(shape) or any(n % count for n, count in zip(shape, counts, strict=True)):
        return ()
    return tuple(n // count for n, count in zip(shape, counts, strict=True))


def _scale_numbers(stored: FileTensor) -> FileTensor:
    # bytes are powers of two
    return viewed(stored, "F8_E8M0") if stored.stored.name == "U8" else stored


def _packed_rows(
    words: FileTensor, n_bits: int, stored: BlockScales, stored_zeros: FileTensor | None, groups: FileTensor | None
) -> Rows:
    """Return rows of whole numbers packed along each row; zero points are packed down each column of the scales."""
    scales, shape, block = stored.open(), stored.shape, stored.block
    if stored_zeros is None:
        zeros = spread_blocks(np.full(1, 1 << n_bits - 1, np.float32), shape, shape)
    else:
        points = unpack_bits(array(stored_zeros).T, n_bits)[:, : block_counts(shape, block)[0]].T
        zeros = spread_blocks(points.astype(np.float32), shape, block)
    if groups is not None:
        columns = column_groups(groups, scales.values.shape[1])
        scales, zeros = replace(scales, column_blocks=columns), replace(zeros, column_blocks=columns)
    return apply_scales(
        lambda start, stop: unpack_bits(array(words, start, stop), n_bits)[:, : shape[1]], scales, zeros
    )


def unpack_compressed_tensors(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that is stored compressed. Raises CheckpointError for a setting or a part."""
    yield from _compressed(_weight_settings(config), parts)


def unpack_small_floats(parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight in FP8, MXFP8, MXFP4 or NVFP4, by its shapes alone. Raises as `unpack_fp8` does."""
    yield from _compressed(Config({}), parts)
    yield from unpack_fp8(Config({}), parts)


def _compressed(settings: Config, parts: Parts) -> Iterator[FileTensor]:
    for name in parts.bases(_DIVISOR):
        yield _nvfp4_weight(name, f"{name}_packed", _DIVISOR, parts)
    for name in parts.bases("_packed"):
        if parts.left[f"{name}_packed"].stored.name == "U8":
            codes = parts.take(f"{name}_packed", ("U8",))
            yield weight_of_rows(name, codes, parts.take(f"{name}_scale", _POWERS))
        else:
            yield _packed(name, settings, parts)
    for name in parts.bases("_scale"):
        if name in parts.left:
            yield _unpacked(name, settings, parts)


def _weight_settings(config: Config) -> Config:
    """Return the settings of weights, empty where groups of layers differ and the shapes decide."""
    groups = [Config(group) for group in config.section("config_groups").values.values() if isinstance(group, dict)]
    weights = [group.section("weights") for group in groups if group.section("weights").values]
    formats = {group.text("format") or config.text("format") or "none" for group in groups}
    for name in sorted(formats.difference(_FORMATS)):
        raise unsupported(f"format {name[:64]!r} of compressed-tensors")
    if not weights:
        raise unsupported("compressed-tensors checkpoint without a group of weights")
    if (config.section("sparsity_config").text("format") or "dense") != "dense":
        raise unsupported("sparsity of compressed-tensors")
    if config.section("transform_config").values.get("config_groups"):
        raise unsupported("rotation of compressed-tensors")
    if any(other.values.get(name) != weights[0].values.get(name) for other in weights for name in _DECISIVE):
        return Config({})
    if (weights[0].text("strategy") or "") not in (("tensor_group",) if formats == {_NVFP4} else _BLOCKS):
        raise unsupported(f"strategy {str(weights[0].values.get('strategy'))[:64]!r} of compressed-tensors")
    return weights[0]


def _scales(name: str, shape: Dims, settings: Config, kinds: tuple[str, ...], parts: Parts) -> BlockScales:
    stored = _scale_numbers(parts.take(f"{name}_scale", kinds))
    strategy = _BLOCKS.get(settings.text("strategy") or "")
    return block_scales(stored, shape, strategy(shape, settings) if strategy else _evident_block(shape, dims(stored)))


def _has_zeros(name: str, settings: Config, parts: Parts) -> bool:
    return settings.flag("symmetric") is False if settings.values else f"{name}_zero_point" in parts.left


def _unpacked(name: str, settings: Config, parts: Parts) -> FileTensor:
    """Return a weight whose values take a byte each."""
    values = parts.take(name, ("F8_E4M3", "I8"))
    shape = dims(values)
    scales = _scales(name, shape, settings, FLOATS if values.stored.name == "I8" else _SCALES, parts)
    zeros = None
    if _has_zeros(name, settings, parts):
        zeros = block_scales(parts.take(f"{name}_zero_point", ("I8",)), shape, scales.block)
    return computed_weight(name, shape, scaled_rows, values, scales, zeros)


def _packed(name: str, settings: Config, parts: Parts) -> FileTensor:
    words, n_rows, n_words = parts.matrix(f"{name}_packed", ("I32",))
    shape = tuple(int(n) for n in array(parts.take(f"{name}_shape", ("I64", "I32"), (2,))))
    n_bits = settings.integer("num_bits") if settings.values else n_words * WORD_BITS // max(1, shape[1])
    if settings.text("type") not in (None, "int") or not 1 <= n_bits <= 8:
        raise unsupported(f"weight of {n_bits} bits of type {settings.values.get('type')!r}"[:128])
    if shape[0] != n_rows or shape[1] < 1 or -(-shape[1] * n_bits // WORD_BITS) != n_words:
        raise malformed(f"The tensor {words.name!r} does not hold {shape[0]} × {shape[1]} numbers of {n_bits} bits")
    scales = _scales(name, shape, settings, FLOATS, parts)
    zeros = None
    if _has_zeros(name, settings, parts):
        n_blocks = block_counts(shape, scales.block)
        packed_rows = -(-n_blocks[0] * n_bits // WORD_BITS)
        zeros = parts.take(f"{name}_zero_point", ("I32",), (packed_rows, n_blocks[1]))
    groups = parts.optional(f"{name}_g_idx", ("I32",), (shape[1],))
    return computed_weight(name, shape, _packed_rows, words, n_bits, scales, zeros, groups)


_MXFP4_BLOCK = 32
_MXFP4_NAN = 255


def _mxfp4_rows(name: str, stored_codes: FileTensor, stored_exponents: FileTensor) -> Rows:
    codes, exponents = stored_rows(stored_codes, 2), stored_rows(stored_exponents)

    def rows(start: int, stop: int) -> npt.NDArray[np.uint8]:
        scales, pairs = exponents(start, stop), codes(start, stop)
        if (scales == _MXFP4_NAN).any():
            raise malformed(f"The tensor {name} holds NaN or infinite weights")
        elements = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], 2, _MXFP4_BLOCK // 2)
        return np.concatenate([scales[..., None], elements[..., 0, :] | elements[..., 1, :] << 4], axis=-1)

    return rows


def _four_bit_rows(codes: FileTensor, grid: Grid) -> Rows:
    pairs = stored_rows(codes)
    return apply_scales(lambda start, stop: four_bit_floats(pairs(start, stop)), grid)


def unpack_mxfp4(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that is stored as blocks and scales, rows before columns. Raises CheckpointError."""
    del config  # there is one way to store it
    for name in parts.bases("_blocks"):
        codes = parts.take(f"{name}_blocks", ("U8",))
        *leading, n_blocks, n_bytes = dims(codes)
        if not leading or n_bytes != _MXFP4_BLOCK // 2:
            raise malformed(f"The tensor {codes.name!r} is not made of blocks of {_MXFP4_BLOCK // 2} bytes")
        exponents = parts.take(f"{name}_scales", ("U8",), (*leading, n_blocks))
        shape = (*leading, n_blocks * _MXFP4_BLOCK)
        yield computed_weight(name, shape, _mxfp4_rows, name, codes, exponents, stored="MXFP4")


def weight_of_rows(name: str, codes: FileTensor, exponents: FileTensor) -> FileTensor:
    """Return the weight whose rows lie in the bytes of `codes`. Raises CheckpointError when exponents do not fit."""
    *leading, n_bytes = dims(codes)
    n_blocks, rest = divmod(n_bytes, _MXFP4_BLOCK // 2)
    if not leading or rest or dims(exponents) != (*leading, n_blocks):
        raise malformed(f"The tensor {exponents.name!r} does not have one number for each {_MXFP4_BLOCK} weights")
    shape = (*leading, n_blocks * _MXFP4_BLOCK)
    if "expert" not in name:  # float32, of which layers that are cut or turned are made
        scales = BlockScales(viewed(exponents, "F8_E8M0"), shape, (1,) * len(leading) + (_MXFP4_BLOCK,))
        return computed_weight(name, shape, _mxfp4_floats, viewed(codes, "U8"), scales)
    blocks = replace(viewed(codes, "U8"), shape=(_MXFP4_BLOCK // 2, n_blocks, *reversed(leading)))
    return computed_weight(name, shape, _mxfp4_rows, name, blocks, viewed(exponents, "U8"), stored="MXFP4")


def _mxfp4_floats(codes: FileTensor, scales: BlockScales) -> Rows:
    return _four_bit_rows(codes, scales.open())


_NVFP4_BLOCK = 16
_FACTOR, _DIVISOR = "_scale_2", "_global_scale"  # ModelOpt's, and that of compressed-tensors


def _nvfp4_rows(codes: FileTensor, stored: BlockScales, stored_factor: FileTensor, divides: bool) -> Rows:
    """Return rows of pairs, the first in the lower half of a byte; the factor multiplies or divides their scales."""
    scales, factor = stored.open(), array(stored_factor)[0]
    if divides and factor == 0:
        raise malformed(f"The tensor {stored_factor.name!r}, by which weights are divided, is 0")
    return _four_bit_rows(codes, replace(scales, values=scales.values / factor if divides else scales.values * factor))


def _nvfp4_weight(name: str, codes_name: str, factor_ending: str, parts: Parts) -> FileTensor:
    codes = parts.take(codes_name, ("U8",))
    *leading, n_bytes = dims(codes)
    shape: Dims = (*leading, 2 * n_bytes)
    if not leading or shape[-1] % _NVFP4_BLOCK:
        raise malformed(f"The tensor {codes.name!r} is not made of blocks of {_NVFP4_BLOCK // 2} bytes")
    scales = block_scales(parts.take(f"{name}_scale", ("F8_E4M3",)), shape, (1,) * len(leading) + (_NVFP4_BLOCK,))
    factor = replace(parts.take(name + factor_ending, ("F32",), (1,), ()), shape=(1,))
    return computed_weight(name, shape, _nvfp4_rows, codes, scales, factor, factor_ending == _DIVISOR)
