"""bitsandbytes: four-bit codes of a table (nf4, fp4) with a largest magnitude for each block, or int8 with one a row.

Four bits: weight = table[code] * absmax, where absmax may itself be codes of a table, scaled and shifted. Eight bits:
weight = value * SCB / 127. Source: bitsandbytes' QuantState and its reference kernels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.parts import Parts, Rows, array, computed_weight, dims, malformed, stored_rows
from quantizer.convert.source_model import FileTensor

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


@dataclass(frozen=True, slots=True)
class _FourBits:
    """Two codes to a byte, the first in the upper half, in blocks that take no notice of rows."""

    codes: FileTensor
    table: FileTensor
    magnitudes: _Magnitudes
    block: int
    n_columns: int

    def open(self) -> Rows:
        table, magnitudes = array(self.table), self.magnitudes.open()

        def rows(start: int, stop: int) -> npt.NDArray[np.float32]:
            first, last = start * self.n_columns, stop * self.n_columns
            pairs = array(self.codes, first // 2, -(-last // 2)).reshape(-1)
            codes = np.stack([pairs >> 4, pairs & 15], axis=-1).reshape(-1)[first % 2 :][: last - first]
            values = table[codes] * magnitudes[np.arange(first, last) // self.block]
            return values.reshape(-1, self.n_columns)

        return rows


@dataclass(frozen=True, slots=True)
class _EightBits:
    """Bytes with the largest magnitude of each row."""

    values: FileTensor
    magnitudes: FileTensor
    layout: FileTensor | None

    def open(self) -> Rows:
        """Read the magnitudes. Raises CheckpointError when the bytes are laid out for a certain GPU."""
        if self.layout is not None and array(self.layout).item() != _ROW_MAJOR:
            raise malformed(f"The tensor {self.values.name!r} is laid out for a certain GPU")
        magnitudes, values = array(self.magnitudes)[:, None], stored_rows(self.values)
        return lambda start, stop: values(start, stop) * magnitudes[start:stop] * _RECIPROCAL


def unpack(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that has a quant_state or a row of magnitudes.

    Raises CheckpointError naming the part that does not fit.
    """
    del config  # every tensor names its own format
    for ending in _STATES:
        for name in parts.bases(ending):
            yield _four_bits(name, parts.take(name + ending, ("U8",)), parts)
    for name in parts.bases(".SCB"):
        yield _eight_bits(name, parts)


def _four_bits(name: str, stored_state: FileTensor, parts: Parts) -> FileTensor:
    state = _state(stored_state)
    shape, block = state.sizes("shape") or (), state.integer("blocksize")
    if len(shape) != 2 or not block:
        raise malformed(f"The tensor {stored_state.name!r} describes no matrix")
    n_bytes, n_blocks = -(-math.prod(shape) // 2), -(-math.prod(shape) // block)
    codes = parts.take(name, ("U8",), (n_bytes, 1))
    table = parts.take(f"{name}.quant_map", ("F32",), (16,))
    magnitudes = _magnitudes(name, n_blocks, state, parts)
    return computed_weight(name, shape, _FourBits(codes, table, magnitudes, block, shape[1]).open)


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
    """Return the JSON that bitsandbytes keeps in a tensor."""
    if dims(stored)[0] > _MAX_STATE_BYTES:
        raise malformed(f"The tensor {stored.name!r} is too large")
    try:
        state = json.loads(array(stored).tobytes())
    except (ValueError, RecursionError) as error:
        raise malformed(f"The tensor {stored.name!r} is not sound JSON") from error
    if not isinstance(state, dict):
        raise malformed(f"The tensor {stored.name!r} is not an object")
    return Config(state)


def _eight_bits(name: str, parts: Parts) -> FileTensor:
    values, n_rows, n_columns = parts.matrix(f"{name}.weight", ("I8",))
    magnitudes = parts.take(f"{name}.SCB", ("F32",), (n_rows,))
    layout = parts.optional(f"{name}.weight_format", ("U8",), (1,))
    return computed_weight(values.name, (n_rows, n_columns), _EightBits(values, magnitudes, layout).open)
