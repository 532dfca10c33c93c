"""Weights whose rows are computed when they are read, as if they lay in a file.

So a packed weight is a FileTensor like any other: it can be renamed, reordered, stacked and cut. Data that rows share
(scales, or everything where rows lie across the file) is read with the first row and freed after the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.packed.parts import Dims, array, malformed
from quantizer.convert.source_model import FileTensor
from quantizer.gguf.tensor_types import tensor_type_named

__all__ = ["RowFile", "Rows", "computed_weight", "stored_rows"]

# (start, stop) -> those rows of a weight, its leading dimensions taken as rows
Rows: TypeAlias = Callable[[int, int], npt.NDArray[Any]]


class RowFile:
    """A file of `n_rows` rows of `row_bytes`, computed from `parts`; `open_rows` reads what they share."""

    def __init__(self, n_rows: int, row_bytes: int, open_rows: Callable[[], Rows], parts: object) -> None:
        self.n_bytes = n_rows * row_bytes
        self.parts = parts
        self._row_bytes = row_bytes
        self._open_rows = open_rows
        self._rows: Rows | None = None

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop), fewer at the end. Raises UserError when the rows cannot be had."""
        stop = min(stop, self.n_bytes)
        if start >= stop:
            return b""
        first, last = start // self._row_bytes, -(-stop // self._row_bytes)
        rows = self._rows or self._open_rows()
        data = rows(first, last).tobytes()
        self._rows = None if stop == self.n_bytes else rows
        return data[start - first * self._row_bytes :][: stop - start]


def computed_weight(name: str, shape: Dims, open_rows: Callable[[], Rows], stored: str = "F32") -> FileTensor:
    """Return the weight `name` of `shape` (columns last), whose rows are computed as `stored`.

    `open_rows` is the method of a dataclass that holds the stored tensors.
    Reading it raises CheckpointError where float32 rows are not finite.
    """
    kind = tensor_type_named(stored)
    opened = _finite(name, open_rows) if stored == "F32" else open_rows
    source = RowFile(math.prod(shape[:-1]), kind.row_bytes(shape[-1]), opened, getattr(open_rows, "__self__", ()))
    return FileTensor(name, tuple(reversed(shape)), kind, source, 0)


def stored_rows(tensor: FileTensor, n_inner: int = 1) -> Rows:
    """Return the rows as they are stored, all dimensions but the last `n_inner` taken as rows."""
    flat = replace(tensor, shape=(*tensor.shape[:n_inner], math.prod(tensor.shape[n_inner:])))
    return partial(array, flat)


def _finite(name: str, open_rows: Callable[[], Rows]) -> Callable[[], Rows]:
    quiet = np.errstate(over="ignore", invalid="ignore")

    def opened() -> Rows:
        rows = quiet(open_rows)()

        def checked(start: int, stop: int) -> npt.NDArray[Any]:
            values = quiet(rows)(start, stop)
            if not np.isfinite(values).all():
                raise malformed(f"The tensor {name} holds NaN or infinite weights")
            return values

        return checked

    return opened
