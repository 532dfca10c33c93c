"""MXFP4 as GPT-OSS stores its experts: 32 four-bit floats and a power of two, straight to ggml's MXFP4.

Both keep the same numbers; a byte holds neighbours in GPT-OSS and elements 16 apart in ggml. Source: transformers'
mxfp4 integration and ggml's block_mxfp4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.parts import Parts, Rows, computed_weight, dims, malformed, stored_rows
from quantizer.convert.source_model import FileTensor

__all__ = ["unpack"]

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
