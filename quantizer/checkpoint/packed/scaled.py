"""Weights stored as small floats or whole numbers with scales beside them, and perhaps zero points.

weight = (value - zero point) * scale. FP8 of transformers, fbgemm and ModelOpt; compressed-tensors, which also packs
whole numbers of less than eight bits along the rows of a matrix: packed values and zero points both count from
-2^(bits - 1). Source: transformers' finegrained_fp8 and fbgemm_fp8, ModelOpt's FP8, compressed-tensors' pack_quantized
and naive_quantized compressors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed import nvfp4
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
    malformed,
    spread_blocks,
    stored_rows,
    unpack_bits,
    unsupported,
)
from quantizer.convert.source_model import FileTensor

__all__ = ["unpack_compressed_tensors", "unpack_fp8", "unpack_modelopt"]

_SCALES = (*FLOATS, "F8_E8M0")
_SMALL_FLOATS = ("F8_E4M3", "F8_E5M2")
_NVFP4 = "nvfp4-pack-quantized"
_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized", _NVFP4)
_DECISIVE = ("num_bits", "type", "strategy", "group_size", "block_structure", "symmetric")
# strategy -> (shape of a weight, settings) -> what one scale is for
_BLOCKS: dict[str, Callable[[Dims, Config], Dims]] = {
    "tensor": lambda shape, _settings: shape,
    "channel": lambda shape, _settings: (1,) * (len(shape) - 1) + shape[-1:],
    "group": lambda shape, settings: (1,) * (len(shape) - 1) + (max(1, settings.integer("group_size")),),
    "block": lambda shape, settings: (1,) * (len(shape) - 2) + (settings.sizes("block_structure") or ()),
}


@dataclass(frozen=True, slots=True)
class _ScaledWeight:
    """Stored values with the scales and zero points of their blocks."""

    values: FileTensor
    scales: BlockScales
    zeros: BlockScales | None = None

    def open(self) -> Rows:
        zeros = self.zeros.open() if self.zeros else None
        return apply_scales(stored_rows(self.values), self.scales.open(), zeros)


def unpack_fp8(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that has a scale. Raises CheckpointError naming the part that does not fit."""
    sizes = config.sizes("weight_block_size")
    for ending in ("_scale_inv", "_scale"):
        for name in parts.bases(ending):
            if name not in parts.left:
                continue
            values, stored = parts.take(name, _SMALL_FLOATS), parts.take(name + ending, _SCALES)
            scales = block_scales(stored, dims(values), _fp8_block(dims(values), dims(stored), sizes))
            yield computed_weight(name, dims(values), _ScaledWeight(values, scales).open)


def unpack_modelopt(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight in NVFP4, then those in FP8: a checkpoint may mix them. Raises as `unpack_fp8` does."""
    yield from nvfp4.unpack_factors(parts)
    yield from unpack_fp8(config, parts)


def _fp8_block(shape: Dims, scales: Dims, sizes: Dims | None) -> Dims:
    """Return the block of one scale: of the given sizes, else the whole weight or one row of it."""
    if sizes is not None:
        return (1,) * (len(shape) - len(sizes)) + sizes
    return shape if math.prod(scales) == 1 else (1,) * (len(shape) - 1) + shape[-1:]


@dataclass(frozen=True, slots=True)
class _PackedWeight:
    """Whole numbers of `n_bits` packed along each row, zero points packed down each column of the scales."""

    words: FileTensor
    n_bits: int
    scales: BlockScales
    zeros: FileTensor | None
    groups: FileTensor | None

    def open(self) -> Rows:
        scales, zeros = self.scales.open(), self._zero_points()
        if self.groups is not None:
            columns = column_groups(self.groups, scales.values.shape[1])
            scales, zeros = replace(scales, column_blocks=columns), replace(zeros, column_blocks=columns)
        return apply_scales(self._codes, scales, zeros)

    def _codes(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        return unpack_bits(array(self.words, start, stop), self.n_bits)[:, : self.scales.shape[1]]

    def _zero_points(self) -> Grid:
        shape, block = self.scales.shape, self.scales.block
        if self.zeros is None:
            return spread_blocks(np.full(1, 1 << self.n_bits - 1, np.float32), shape, shape)
        points = unpack_bits(array(self.zeros).T, self.n_bits)[:, : block_counts(shape, block)[0]].T
        return spread_blocks(points.astype(np.float32), shape, block)


def unpack_compressed_tensors(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that is stored compressed.

    Raises CheckpointError naming a setting that is not supported or the part that does not fit.
    """
    settings = _weight_settings(config)
    yield from nvfp4.unpack_divisors(parts)
    for name in parts.bases("_packed"):
        yield _packed(name, settings, parts)
    for name in parts.bases("_scale"):
        if name in parts.left:
            yield _unpacked(name, settings, parts)


def _weight_settings(config: Config) -> Config:
    """Return the settings of weights, which must be the same for all groups of layers."""
    groups = [Config(group) for group in config.section("config_groups").values.values() if isinstance(group, dict)]
    weights = [group.section("weights") for group in groups if group.section("weights").values]
    formats = {group.text("format") or config.text("format") or "none" for group in groups}
    for name in sorted(formats.difference(_FORMATS)):
        raise unsupported(f"format {name[:64]!r} of compressed-tensors")
    if not weights or any(_decisive(other) != _decisive(weights[0]) for other in weights):
        raise unsupported("layers quantized in several ways, or in none,")
    if (weights[0].text("strategy") or "") not in (("tensor_group",) if formats == {_NVFP4} else _BLOCKS):
        raise unsupported(f"strategy {str(weights[0].values.get('strategy'))[:64]!r} of compressed-tensors")
    if (config.section("sparsity_config").text("format") or "dense") != "dense":
        raise unsupported("sparsity of compressed-tensors")
    return weights[0]


def _decisive(settings: Config) -> list[object]:
    return [settings.values.get(name) for name in _DECISIVE]


def _block(shape: Dims, settings: Config) -> Dims:
    return _BLOCKS[settings.text("strategy") or ""](shape, settings)


def _unpacked(name: str, settings: Config, parts: Parts) -> FileTensor:
    """Return a weight whose values take a byte each."""
    values = parts.take(name, ("F8_E4M3", "I8"))
    shape = dims(values)
    block = _block(shape, settings)
    scales = block_scales(parts.take(f"{name}_scale", FLOATS), shape, block)
    is_symmetric = settings.flag("symmetric") is not False
    zeros = None if is_symmetric else block_scales(parts.take(f"{name}_zero_point", ("I8",)), shape, block)
    return computed_weight(name, shape, _ScaledWeight(values, scales, zeros).open)


def _packed(name: str, settings: Config, parts: Parts) -> FileTensor:
    n_bits = settings.integer("num_bits")
    if settings.text("type") not in (None, "int") or not 1 <= n_bits <= 8:
        raise unsupported(f"weight of {n_bits} bits of type {settings.values.get('type')!r}"[:128])
    words, n_rows, n_words = parts.matrix(f"{name}_packed", ("I32",))
    shape = tuple(int(n) for n in array(parts.take(f"{name}_shape", ("I64", "I32"), (2,))))
    if shape[0] != n_rows or shape[1] < 1 or -(-shape[1] * n_bits // WORD_BITS) != n_words:
        raise malformed(f"The tensor {words.name!r} does not hold {shape[0]} × {shape[1]} numbers of {n_bits} bits")
    scales = block_scales(parts.take(f"{name}_scale", FLOATS), shape, _block(shape, settings))
    zeros = None
    if settings.flag("symmetric") is False:
        n_blocks = block_counts(shape, scales.block)
        packed_rows = -(-n_blocks[0] * n_bits // WORD_BITS)
        zeros = parts.take(f"{name}_zero_point", ("I32",), (packed_rows, n_blocks[1]))
    groups = parts.optional(f"{name}_g_idx", ("I32",), (shape[1],))
    return computed_weight(name, shape, _PackedWeight(words, n_bits, scales, zeros, groups).open)
