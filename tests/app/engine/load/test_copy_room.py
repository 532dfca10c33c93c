"""Whether copies of weights may take memory, and that the user hears of it where they may not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from app.engine.load import loading

GIB = 1 << 30


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    memory = SimpleNamespace(total_bytes=16 * GIB, free_bytes=8 * GIB)
    monkeypatch.setattr(loading, "host_memory", lambda: memory)
    return memory


def test_copies_that_have_room_are_not_announced(free: SimpleNamespace) -> None:
    said: list[str] = []
    assert loading.CopyRoom(said.append)(GIB)
    assert not said


def test_a_copy_that_is_refused_when_it_is_due_is_announced_once_with_its_size(free: SimpleNamespace) -> None:
    said: list[str] = []
    has_room = loading.CopyRoom(said.append)
    free.free_bytes = GIB
    assert not has_room(GIB)
    assert not has_room(GIB)
    (text,) = said
    assert "needs 1.0 GiB" in text
    assert "Close programs" in text


def test_copies_that_are_given_back_are_announced(free: SimpleNamespace) -> None:
    said: list[str] = []
    has_room = loading.CopyRoom(said.append)
    assert has_room(GIB)
    free.free_bytes = 0
    assert not has_room(0)
    assert "given back" in said[0]
