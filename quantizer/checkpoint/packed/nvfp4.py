"""NVFP4: four-bit floats, two to a byte, with a scale in FP8 for each 16 and one in float32 for the whole weight.

weight = value * (scale * factor); compressed-tensors stores the factor's reciprocal. The values are E2M1 of the OCP
microscaling specification. Source: ModelOpt's unified checkpoints, compressed-tensors' nvfp4-pack-quantized, and
llama.cpp's conversion of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.packed.parts import (
    BlockScales,
    Dims,
    Grid,
    Parts,
    Rows,
    apply_scales,
    array,
    block_scales,
    computed_weight,
    dims,
    four_bit_floats,
    malformed,
    stored_rows,
)
from quantizer.convert.source_model import FileTensor

_BLOCK = 16
_FACTOR, _DIVISOR = "_scale_2", "_global_scale"


@dataclass(frozen=True, slots=True)
class _Weight:
    """Pairs of codes, the first in the lower half of a byte; scales of blocks, and what multiplies or divides them."""

    codes: FileTensor
    scales: BlockScales
    factor: FileTensor
    divides: bool

    def open(self) -> Rows:
        scales, factor = self.scales.open(), array(self.factor)[0]
        if self.divides and factor == 0:
            raise malformed(f"The tensor {self.factor.name!r}, by which weights are divided, is 0")
        values = scales.values / factor if self.divides else scales.values * factor
        return apply_scales(self._numbers, Grid(values, scales.row_blocks, scales.column_blocks))

    def _numbers(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return four_bit_floats(stored_rows(self.codes)(start, stop))


def unpack_factors(parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight as ModelOpt stores it. Raises CheckpointError naming the part that does not fit."""
    for name in parts.bases(_FACTOR):
        yield _weight(name, name, _FACTOR, parts)


def unpack_divisors(parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight as compressed-tensors stores it. Raises CheckpointError naming the part that does not fit."""
    for name in parts.bases(_DIVISOR):
        yield _weight(name, f"{name}_packed", _DIVISOR, parts)


def _weight(name: str, codes_name: str, factor_ending: str, parts: Parts) -> FileTensor:
    codes = parts.take(codes_name, ("U8",))
    *leading, n_bytes = dims(codes)
    shape: Dims = (*leading, 2 * n_bytes)
    if not leading or shape[-1] % _BLOCK:
        raise malformed(f"The tensor {codes.name!r} is not made of blocks of {_BLOCK // 2} bytes")
    scales = block_scales(parts.take(f"{name}_scale", ("F8_E4M3",)), shape, (1,) * len(leading) + (_BLOCK,))
    factor = replace(parts.take(name + factor_ending, ("F32",), (1,), ()), shape=(1,))
    return computed_weight(name, shape, _Weight(codes, scales, factor, factor_ending == _DIVISOR).open)
