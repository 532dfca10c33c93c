"""Weights stored as small floats or whole numbers with scales beside them, and perhaps zero points.

weight = (value - zero point) * scale. Source: transformers' finegrained_fp8 and fbgemm_fp8, ModelOpt's FP8,
compressed-tensors' float-quantized and int-quantized.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.grid import BlockScales, apply_scales, block_scales
from quantizer.checkpoint.packed.parts import FLOATS, Dims, Parts, Rows, computed_weight, dims, stored_rows
from quantizer.convert.source_model import FileTensor

__all__ = ["ScaledWeight", "unpack_fp8"]

_SCALES = (*FLOATS, "F8_E8M0")
_FLOATS = ("F8_E4M3", "F8_E5M2")


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """Stored values with the scales and zero points of their blocks."""

    values: FileTensor
    scales: BlockScales
    zeros: BlockScales | None = None

    def open(self) -> Rows:
        """Read the scales and zero points."""
        zeros = self.zeros.open() if self.zeros else None
        return apply_scales(stored_rows(self.values), self.scales.open(), zeros)


def unpack_fp8(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that has a scale. Raises CheckpointError naming the part that does not fit."""
    sizes = config.sizes("weight_block_size")
    for ending in ("_scale_inv", "_scale"):
        for name in parts.bases(ending):
            if name not in parts.left:
                continue
            values, stored = parts.take(name, _FLOATS), parts.take(name + ending, _SCALES)
            scales = block_scales(stored, dims(values), _block(dims(values), dims(stored), sizes))
            yield computed_weight(name, dims(values), ScaledWeight(values, scales).open)


def _block(shape: Dims, scales: Dims, sizes: Dims | None) -> Dims:
    """Return the block of one scale: of the given sizes, else the whole weight or one row of it."""
    if sizes is not None:
        return (1,) * (len(shape) - len(sizes)) + sizes
    return shape if math.prod(scales) == 1 else (1,) * (len(shape) - 1) + shape[-1:]
