"""Children that read several files: which are kept, and what ends them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from app.chat.attachments import parser_process
from app.chat.attachments.parser_process import KeptParsers, ReadBudget
from app.chat.attachments.reader import read_data
from quantizer.system.errors import UsageError
from tests.app.chat.attachments.files import pdf_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

Children = list["subprocess.Popen[bytes]"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Children:
    """The children that were started, in order."""
    start, children = parser_process._started, Children()

    def counted() -> subprocess.Popen[bytes]:
        children.append(start())
        return children[-1]

    monkeypatch.setattr(parser_process, "_started", counted)
    return children


@pytest.fixture
def kept() -> Iterator[KeptParsers]:
    parsers = KeptParsers()
    yield parsers
    parsers.close()


def _page(number: int, kept: KeptParsers | None, budget: ReadBudget | None = None) -> str:
    return read_data(f"<p>page {number}".encode(), f"{number}.html", budget=budget, kept=kept).attachment.content


def test_one_child_reads_many_pages_and_each_is_its_own(started: Children, kept: KeptParsers) -> None:
    assert [_page(number, kept) for number in range(5)] == [f"page {number}" for number in range(5)]
    assert len(started) == 1
    kept.close()
    assert started[0].wait(PATIENCE_S) != 0
    assert [_page(number, None) for number in range(2)] == ["page 0", "page 1"]
    assert len(started) == 3


def test_a_file_that_cannot_be_read_ends_its_child(started: Children, kept: KeptParsers) -> None:
    _page(0, kept)
    with pytest.raises(UsageError, match="has no text"):
        read_data(b"<p>", "empty.html", kept=kept)
    assert started[0].wait(PATIENCE_S) != 0
    assert _page(1, kept) == "page 1"
    assert len(started) == 2


def test_a_child_that_was_killed_while_it_waited_is_replaced(started: Children, kept: KeptParsers) -> None:
    _page(0, kept)
    started[0].kill()
    started[0].wait(PATIENCE_S)
    assert _page(1, kept) == "page 1"
    assert len(started) == 2


def test_native_code_and_large_files_get_a_child_of_their_own(
    started: Children, kept: KeptParsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        read_data(pdf_of(["words"]), f"{number}.pdf", kept=kept)
    assert len(started) == 2
    monkeypatch.setattr(parser_process, "_MAX_KEPT_BYTES", 3)
    _page(0, kept)
    _page(1, kept)
    assert len(started) == 4


def test_a_child_reads_so_many_files_and_no_more(
    started: Children, kept: KeptParsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parser_process, "_MAX_KEPT_FILES", 2)
    for number in range(4):
        _page(number, kept)
    assert len(started) == 2


def test_a_request_that_is_stopped_ends_no_child_of_a_later_one(started: Children, kept: KeptParsers) -> None:
    first = ReadBudget()
    _page(0, kept, first)
    first.stop()
    assert _page(1, kept) == "page 1"
    assert len(started) == 1


def test_each_file_of_a_child_has_its_own_time(kept: KeptParsers) -> None:
    _page(0, kept)
    budget = ReadBudget(total_s=0.2)
    with pytest.raises(UsageError, match="takes too long to read"):
        read_data(b"<p>" * 100_000, "deep.html", budget=budget, kept=kept)
