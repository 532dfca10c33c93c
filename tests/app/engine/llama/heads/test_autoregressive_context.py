from __future__ import annotations

import numpy as np

from app.engine.llama.heads.autoregressive_context import HiddenRows

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def stored() -> HiddenRows:
    rows = HiddenRows()
    rows.set(1, 10, ROWS)
    return rows


def test_the_state_before_a_token_is_that_of_the_token_before_it() -> None:
    known = [stored().before(1, position) for position in (10, 11, 12, 13, 14)]
    assert [None if row is None else list(row) for row in known] == [None, [0, 1], [2, 3], [4, 5], None]


def test_a_first_token_and_an_unknown_sequence_have_no_row() -> None:
    rows = HiddenRows()
    rows.set(1, 0, ROWS)
    assert rows.before(1, 0) is None
    assert rows.before(2, 1) is None


def test_rows_are_copied_and_replace_earlier_ones() -> None:
    rows, native = stored(), ROWS.copy()
    rows.set(1, 20, native)
    native[:] = 0
    assert rows.before(1, 13) is None
    row = rows.before(1, 23)
    assert row is not None
    assert list(row) == [4, 5]


def test_a_copy_of_a_sequence_has_its_rows_only() -> None:
    rows = stored()
    rows.set(2, 10, -ROWS)
    rows.share(1, 2)
    row = rows.before(2, 11)
    assert row is not None
    assert list(row) == [0, 1]
    rows.share(3, 2)
    assert rows.before(2, 11) is None


def test_removed_rows_are_not_returned() -> None:
    rows = stored()
    rows.remove(1)
    assert rows.before(1, 11) is None
