from __future__ import annotations

import numpy as np

from app.engine.llama.mtp import HiddenRows

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def kept() -> HiddenRows:
    rows = HiddenRows()
    rows.set(1, 10, ROWS)
    return rows


def test_the_state_before_a_token_is_that_of_the_token_before_it() -> None:
    known = [kept().before(1, position) for position in (10, 11, 12, 13, 14)]
    assert [None if row is None else list(row) for row in known] == [None, [0, 1], [2, 3], [4, 5], None]


def test_a_texts_first_token_and_an_unknown_sequence_have_none() -> None:
    rows = HiddenRows()
    rows.set(1, 0, ROWS)
    assert rows.before(1, 0) is None
    assert rows.before(2, 1) is None


def test_what_is_kept_is_a_copy_and_replaces_what_was_kept_before() -> None:
    rows, native = kept(), ROWS.copy()
    rows.set(1, 20, native)
    native[:] = 0
    assert rows.before(1, 13) is None
    row = rows.before(1, 23)
    assert row is not None
    assert list(row) == [4, 5]


def test_a_sequence_that_begins_as_another_knows_what_that_knows_and_nothing_of_its_own_past() -> None:
    rows = kept()
    rows.set(2, 10, -ROWS)
    rows.share(1, 2)
    row = rows.before(2, 11)
    assert row is not None
    assert list(row) == [0, 1]
    rows.share(3, 2)
    assert rows.before(2, 11) is None


def test_what_is_forgotten_is_not_known() -> None:
    rows = kept()
    rows.remove(1)
    assert rows.before(1, 11) is None
    rows = kept()
    rows.clear()
    assert rows.before(1, 11) is None
