"""MXFP4: 32 four-bit floats and a power of two, straight to ggml's MXFP4.

Both keep the same numbers; a byte holds neighbours in a checkpoint and elements 16 apart in ggml. GPT-OSS stores blocks
and scales, others rows of bytes and scales. Source: transformers' mxfp4 and finegrained_fp8 integrations,
compressed-tensors' mxfp4-pack-quantized, ggml's block_mxfp4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.parts import (
    BlockScales,
    Parts,
    Rows,
    apply_scales,
    computed_weight,
    dims,
    four_bit_floats,
    malformed,
    stored_rows,
    viewed,
)
from quantizer.convert.source_model import FileTensor

_BLOCK = 32
_NAN = 255


@dataclass(frozen=True, slots=True)
class _Weight:
    """Pairs of codes and the exponents of their blocks."""

    name: str
    codes: FileTensor
    exponents: FileTensor

    def open(self) -> Rows:
        codes, exponents = stored_rows(self.codes, 2), stored_rows(self.exponents)

        def rows(start: int, stop: int) -> npt.NDArray[np.uint8]:
            scales, pairs = exponents(start, stop), codes(start, stop)
            if (scales == _NAN).any():
                raise malformed(f"The tensor {self.name} holds NaN or infinite weights")
            elements = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], 2, _BLOCK // 2)
            return np.concatenate([scales[..., None], elements[..., 0, :] | elements[..., 1, :] << 4], axis=-1)

        return rows


@dataclass(frozen=True, slots=True)
class _Floats:
    """The same as float32, of which layers that are cut or turned are made."""

    codes: FileTensor
    scales: BlockScales

    def open(self) -> Rows:
        pairs = stored_rows(self.codes)
        return apply_scales(lambda start, stop: four_bit_floats(pairs(start, stop)), self.scales.open())


def unpack(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that is stored as blocks and scales, rows before columns. Raises CheckpointError."""
    del config  # there is one way to store it
    for name in parts.bases("_blocks"):
        codes = parts.take(f"{name}_blocks", ("U8",))
        *leading, n_blocks, n_bytes = dims(codes)
        if not leading or n_bytes != _BLOCK // 2:
            raise malformed(f"The tensor {codes.name!r} is not made of blocks of {_BLOCK // 2} bytes")
        exponents = parts.take(f"{name}_scales", ("U8",), (*leading, n_blocks))
        yield computed_weight(name, (*leading, n_blocks * _BLOCK), _Weight(name, codes, exponents).open, "MXFP4")


def weight_of_rows(name: str, codes: FileTensor, exponents: FileTensor) -> FileTensor:
    """Return the weight whose rows lie in the bytes of `codes`: experts as they are, others as floats.

    Raises CheckpointError when the exponents do not fit.
    """
    *leading, n_bytes = dims(codes)
    n_blocks, rest = divmod(n_bytes, _BLOCK // 2)
    if not leading or rest or dims(exponents) != (*leading, n_blocks):
        raise malformed(f"The tensor {exponents.name!r} is not one number for each {_BLOCK} weights")
    shape = (*leading, n_blocks * _BLOCK)
    if "expert" not in name:
        scales = BlockScales(viewed(exponents, "F8_E8M0"), shape, (1,) * len(leading) + (_BLOCK,))
        return computed_weight(name, shape, _Floats(viewed(codes, "U8"), scales).open)
    blocks = replace(viewed(codes, "U8"), shape=(_BLOCK // 2, n_blocks, *reversed(leading)))
    return computed_weight(name, shape, _Weight(name, blocks, viewed(exponents, "U8")).open, "MXFP4")
