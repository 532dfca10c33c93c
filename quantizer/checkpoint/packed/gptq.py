"""GPTQ: whole numbers of 2, 3, 4 or 8 bits packed down the columns, in groups of inputs in any order.

weight[o, i] = (q[i, o] - zero[group of i, o]) * scale[group of i, o]. The first version of the format stores zero
points less one. Source: AutoGPTQ's and GPTQModel's linear layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.grid import WORD_BITS, Grid, apply_scales, column_groups, unpack_bits
from quantizer.checkpoint.packed.parts import FLOATS, Parts, Rows, array, computed_weight, dims, malformed, unsupported
from quantizer.convert.source_model import FileTensor

__all__ = ["unpack"]

_BITS = (2, 3, 4, 8)
# checkpoint_format -> what is added to a stored zero point, which wraps round
_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}


@dataclass(frozen=True, slots=True)
class _Weight:
    """The parts of a weight; `groups` is missing where inputs are in order, `group_size` at a time."""

    words: FileTensor
    zeros: FileTensor
    scales: FileTensor
    groups: FileTensor | None
    group_size: int
    n_bits: int
    zero_offset: int

    def open(self) -> Rows:
        """Read all of it, packed: a row of the weight lies across the whole of `words`."""
        words, scales = array(self.words), array(self.scales)
        zeros = unpack_bits(array(self.zeros), self.n_bits) + np.uint8(self.zero_offset) & np.uint8(2**self.n_bits - 1)
        n_groups, n_rows = scales.shape
        n_columns = len(words) * WORD_BITS // self.n_bits
        in_order = np.arange(n_columns) // self.group_size
        columns = in_order if self.groups is None else column_groups(self.groups, n_groups)

        def codes(start: int, stop: int) -> npt.NDArray[np.uint8]:
            return unpack_bits(words[:, start:stop].T, self.n_bits)

        def grid(values: npt.NDArray[np.generic]) -> Grid:
            return Grid(values.T.astype(np.float32), np.arange(n_rows), columns)

        return apply_scales(codes, grid(scales), grid(zeros))


def unpack(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that is stored as qweight, qzeros, scales and g_idx.

    Raises CheckpointError naming a setting that is not supported or the part that does not fit.
    """
    n_bits, version = config.integer("bits"), config.text("checkpoint_format") or "gptq"
    if n_bits not in _BITS:
        raise unsupported(f"GPTQ of {n_bits} bits")
    if version not in _ZERO_OFFSETS:
        raise unsupported(f"GPTQ format {version[:64]!r}")
    for name in parts.bases(".qweight"):
        yield _weight(name, config, n_bits, _ZERO_OFFSETS[version], parts)


def _weight(name: str, config: Config, n_bits: int, zero_offset: int, parts: Parts) -> FileTensor:
    words, n_words, n_rows = parts.matrix(f"{name}.qweight", ("I32",))
    n_columns, rest = divmod(n_words * WORD_BITS, n_bits)
    scales, n_groups, _ = parts.matrix(f"{name}.scales", FLOATS)
    size = config.values.get("group_size")
    group_size = n_columns if size in (None, -1) else config.integer("group_size")
    is_sound = not rest and dims(scales)[1] == n_rows and group_size > 0 and n_rows * n_bits % WORD_BITS == 0
    if not is_sound or -(-n_columns // group_size) != n_groups:
        raise malformed(f"The tensor {scales.name!r} is not one number for each group of {n_rows} rows")
    zeros = parts.take(f"{name}.qzeros", ("I32",), (n_groups, n_rows * n_bits // WORD_BITS))
    groups = parts.optional(f"{name}.g_idx", ("I32",), (n_columns,))
    weight = _Weight(words, zeros, scales, groups, group_size, n_bits, zero_offset)
    return computed_weight(f"{name}.weight", (n_rows, n_columns), weight.open)
