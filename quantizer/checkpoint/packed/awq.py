"""AWQ's GEMM layout: whole numbers of four bits, eight outputs to a word, in the order that its kernel likes.

weight[o, i] = (q[i, o] - zero[group of i, o]) * scale[group of i, o]. Source: AutoAWQ's WQLinear_GEMM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.grid import WORD_BITS, Grid, apply_scales, unpack_bits
from quantizer.checkpoint.packed.parts import FLOATS, Parts, Rows, array, computed_weight, malformed, unsupported
from quantizer.convert.source_model import FileTensor

__all__ = ["unpack"]

_BITS = 4
_PER_WORD = WORD_BITS // _BITS
# the field of a word in which each of eight neighbours lies
_FIELDS = np.array([0, 4, 1, 5, 2, 6, 3, 7])


@dataclass(frozen=True, slots=True)
class _Weight:
    """The parts of a weight, whose inputs come in groups of `group_size`."""

    words: FileTensor
    zeros: FileTensor
    scales: FileTensor
    group_size: int

    def open(self) -> Rows:
        """Read all of it, packed: a row of the weight lies across the whole of `words`."""
        words, zeros, scales = array(self.words), _ordered(array(self.zeros)), array(self.scales)
        columns = np.arange(len(words)) // self.group_size

        def codes(start: int, stop: int) -> npt.NDArray[np.uint8]:
            first = start // _PER_WORD
            fields = _ordered(words[:, first : -(-stop // _PER_WORD)])
            return fields[:, start - first * _PER_WORD : stop - first * _PER_WORD].T

        def grid(values: npt.NDArray[np.generic]) -> Grid:
            return Grid(values.T.astype(np.float32), np.arange(scales.shape[1]), columns)

        return apply_scales(codes, grid(scales), grid(zeros))


def _ordered(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Return the fields of each row of words, neighbours side by side."""
    fields = unpack_bits(words, _BITS).reshape(len(words), -1, _PER_WORD)
    return fields[..., _FIELDS].reshape(len(words), -1)


def unpack(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that is stored as qweight, qzeros and scales.

    Raises CheckpointError naming a setting that is not supported or the part that does not fit.
    """
    layout, n_bits = (config.text("version") or "gemm").lower(), config.integer("bits", "w_bit")
    if layout != "gemm" or n_bits != _BITS:
        raise unsupported(f"AWQ layout {layout[:64]!r} of {n_bits} bits")
    for name in parts.bases(".qweight"):
        yield _weight(name, config, parts)


def _weight(name: str, config: Config, parts: Parts) -> FileTensor:
    words, n_columns, n_words = parts.matrix(f"{name}.qweight", ("I32",))
    n_rows = n_words * _PER_WORD
    is_whole = config.values.get("group_size", config.values.get("q_group_size")) == -1
    group_size = n_columns if is_whole else config.integer("group_size", "q_group_size")
    if not group_size or n_columns % group_size:
        raise malformed(f"The tensor {words.name!r} has {n_columns} inputs, no groups of {group_size}")
    n_groups = n_columns // group_size
    zeros = parts.take(f"{name}.qzeros", ("I32",), (n_groups, n_words))
    scales = parts.take(f"{name}.scales", FLOATS, (n_groups, n_rows))
    return computed_weight(f"{name}.weight", (n_rows, n_columns), _Weight(words, zeros, scales, group_size).open)
