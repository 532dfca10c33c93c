from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantizer.checkpoint.packed.parts import RowFile, Rows


class Counted:
    """Rows of numbers, and how often they were opened."""

    def __init__(self, n_rows: int) -> None:
        self.values = np.arange(4 * n_rows, dtype="<f4").reshape(n_rows, 4)
        self.n_opened = 0

    def open(self) -> Rows:
        self.n_opened += 1
        return lambda start, stop: self.values[start:stop]


@given(st.integers(1, 20), st.data())
def test_any_range_reads_as_if_it_lay_in_a_file(n_rows: int, data: st.DataObject) -> None:
    rows = Counted(n_rows)
    file = RowFile(n_rows, 16, rows.open, parts=rows)
    start, stop = data.draw(st.tuples(st.integers(0, 400), st.integers(0, 400)))
    assert file.read(start, stop) == rows.values.tobytes()[start:stop]


def test_shared_data_of_rows_is_read_once_and_freed_after_the_last() -> None:
    rows = Counted(6)
    file = RowFile(6, 16, rows.open, parts=rows)
    for start in range(0, 96, 32):
        file.read(start, start + 32)
    assert rows.n_opened == 1
    file.read(0, 32)
    assert rows.n_opened == 2
