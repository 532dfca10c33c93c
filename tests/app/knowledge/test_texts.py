from __future__ import annotations

import asyncio
import gc
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.conversation import Attachment
from app.knowledge.citation import Surroundings, surroundings_in
from app.knowledge.texts import TextIndex

_DINNER = Attachment("notes.md", "# Broth\n\nIt simmers for three hours.\n\n" + "Salt it late. " * 40)
_TOUR = Attachment("notes.md", "# Tour\n\nCycling along the river is best in May.")
_PAPER = Attachment("paper.pdf", "[Page 7]\n\nBarometers fall before it rains.", "application/pdf")


def test_a_passage_of_one_of_the_texts_is_found_with_its_place() -> None:
    index = TextIndex([_DINNER, _TOUR, _PAPER])
    assert [source.label for source in index.search("Do barometers fall?", 5)] == ["paper.pdf, page 7"]
    assert [source.label for source in index.search("cycle in May", 5)] == ["notes.md (Tour)"], "not the other notes.md"
    assert index.search("zebra", 5) == ()
    assert index.search("", 5) == ()


@pytest.mark.parametrize("name", ["", "..", "/etc/passwd", "a\0b", "\ud800.md", "x" * 5_000, "https://a.example/"])
def test_whatever_a_text_is_called_it_is_searched(name: str) -> None:
    (source,) = TextIndex([Attachment(name, _TOUR.content)]).search("river", 5)
    assert source.path == name


def test_its_database_is_closed_once_nobody_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def recorded(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", recorded)
    index = TextIndex([_TOUR])
    assert len(index.search("river", 1)) == 1
    del index
    gc.collect()
    (connection,) = opened
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


async def test_any_thread_searches_it() -> None:
    index = TextIndex([_DINNER, _TOUR])
    found = await asyncio.gather(*(asyncio.to_thread(index.search, word, 1) for word in ("simmers", "river") * 4))
    assert [passages[0].heading for passages in found] == ["Broth", "Tour"] * 4


def test_the_beginning_is_of_each_text_and_no_more_than_asked_for() -> None:
    index = TextIndex([_DINNER, _TOUR, _PAPER])
    assert [source.heading for source in index.beginning(3)] == ["Broth", "Tour", ""]
    assert len(index.beginning(2)) == 2
    assert [source.heading for source in TextIndex([_TOUR]).beginning(5)] == ["Tour"]


@given(st.lists(st.text(), min_size=1, max_size=3), st.text())
def test_whatever_is_found_is_a_slice_of_its_text_with_what_stands_around_it(texts: list[str], question: str) -> None:
    attached = [Attachment(f"{number}.md", text) for number, text in enumerate(texts)]
    index = TextIndex(attached)
    for source in (*index.search(question, 5), *index.search(texts[0], 5), *index.beginning(5)):
        text = texts[int(source.path[0])]
        assert source.text == text[source.begin : source.end]
        around = surroundings_in(attached, source)
        assert around is not None
        assert around.before + source.text + around.after in text


def test_a_source_of_none_of_the_texts_has_no_surroundings_in_them() -> None:
    (source,) = TextIndex([_TOUR]).search("river", 1)
    assert surroundings_in([_TOUR], source) == Surroundings("", "")
    assert surroundings_in([_DINNER, _PAPER], source) is None
