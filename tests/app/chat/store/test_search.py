from __future__ import annotations

import json
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.conversation import MessageContent, MessageState
from app.chat.store.chat_store import ChatStore
from app.chat.store.database import MATCH_BEGIN, MATCH_END, storable
from app.chat.store.search import ChatFilter, match_expression, snippet_of
from app.protocol.chat import ToolCall
from app.tools.tool import ToolOutcome, ToolResult

_SPECIAL = st.text(st.sampled_from("ab\"'*^():-+{}, \t\nANDORNOTEé日\x00\ud800"))


@pytest.fixture(scope="module")
def index() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE words USING fts5(text)")
    return connection


@given(typed=_SPECIAL | st.text())
def test_whatever_is_typed_is_an_expression_that_sqlite_takes(index: sqlite3.Connection, typed: str) -> None:
    if expression := match_expression(typed):
        index.execute("SELECT * FROM words WHERE words MATCH ?", (expression,)).fetchall()


@pytest.mark.parametrize(
    ("typed", "expression"),
    [
        ("", ""),
        ("  !? ", ""),
        ("brea", '"brea"*'),
        ("bread ", '"bread"'),
        ("sour brea", '"sour" "brea"*'),
        ('"sour bread"', '"sour bread"'),
        ('"sour brea', '"sour brea"*'),
        ("NOT bread OR NEAR(x)", '"NOT" "bread" "OR" "NEAR(x)"*'),
        ("title:x*", '"title:x*"*'),
    ],
)
def test_words_are_quoted_and_the_last_is_a_beginning(typed: str, expression: str) -> None:
    assert match_expression(typed) == expression


def test_a_very_long_query_is_bounded() -> None:
    assert len(match_expression("a " * 100_000)) < 2_000


def _chat(store: ChatStore, title: str, *contents: str, model: str = "", created_ms: int = 0) -> int:
    chat_id, parent_id = store.chats.create(title=title, model=model).id, None
    for content in contents:
        said = MessageContent(role="user", content=content, created_ms=created_ms)
        parent_id = store.messages.add(chat_id, parent_id, said).id
    return chat_id


def _found(store: ChatStore, typed: str, chat_filter: ChatFilter | None = None) -> list[int]:
    return [hit.chat.id for hit in store.search.find(typed, chat_filter or ChatFilter())]


def test_words_are_found_while_they_are_typed_without_case_or_accents(store: ChatStore) -> None:
    chat_id = _chat(store, "", "Das Café öffnet um acht")
    for typed in ("c", "caf", "CAFE", "offnet caf", '"offnet um"', "acht "):
        assert _found(store, typed) == [chat_id], typed
    for typed in ("afé", "um caff", '"um offnet"', "ach "):
        assert _found(store, typed) == [], typed


def test_a_snippet_has_the_offsets_of_matches(store: ChatStore) -> None:
    _chat(store, "", "word " * 100 + "the needle in it" + " word" * 100)
    (hit,) = store.search.find("needle")
    (match,) = hit.snippet.matches
    assert hit.snippet.text[slice(*match)] == "needle"
    assert hit.snippet.text.startswith("…")
    assert len(hit.snippet.text) < 200


@given(st.lists(st.tuples(st.text(), st.text())))
def test_marks_become_offsets(pieces: list[tuple[str, str]]) -> None:
    clean = [(storable(before), storable(match)) for before, match in pieces]
    found = snippet_of("".join(f"{before}{MATCH_BEGIN}{match}{MATCH_END}" for before, match in clean))
    assert found.text == "".join(before + match for before, match in clean)
    assert [found.text[slice(*offsets)] for offsets in found.matches] == [match for _, match in clean]


def test_a_chat_is_found_once_by_its_newest_message_and_titles_come_first(store: ChatStore) -> None:
    spoken = _chat(store, "dinner", "soup today", "more soup")
    titled = _chat(store, "soup", "what shall I cook")
    hits = store.search.find("soup")
    assert [hit.chat.id for hit in hits] == [titled, spoken]
    assert hits[0].message_id is None
    assert hits[1].message_id == store.messages.of(spoken)[-1].id


def test_the_newest_message_comes_first_up_to_the_limit(store: ChatStore) -> None:
    ids = [_chat(store, "", f"soup {number}") for number in range(5)]
    assert [hit.chat.id for hit in store.search.find("soup", limit=2)] == [ids[4], ids[3]]


def test_a_search_is_narrowed_by_model_and_moment(store: ChatStore) -> None:
    old = _chat(store, "", "soup", model="guide", created_ms=1_000)
    new = _chat(store, "", "soup", model="qwen", created_ms=2_000)
    assert _found(store, "soup", ChatFilter(model="guide")) == [old]
    assert _found(store, "soup", ChatFilter(since_ms=2_000)) == [new]
    assert _found(store, "soup", ChatFilter(until_ms=2_000)) == [old]
    assert _found(store, "soup", ChatFilter(model="guide", since_ms=2_000)) == []


def test_what_is_renamed_rewritten_or_removed_is_found_as_it_is_now(store: ChatStore) -> None:
    chat_id = _chat(store, "before")
    store.chats.rename(chat_id, "after")
    answer = store.messages.add(
        chat_id, None, MessageContent(role="assistant", content="fir", state=MessageState.PARTIAL)
    )
    store.messages.write(answer.id, "first half")
    assert (_found(store, "before"), _found(store, "after"), _found(store, "half")) == ([], [chat_id], [chat_id])
    store.messages.finish(answer.id, MessageContent(role="assistant", content="second"))
    assert (_found(store, "half"), _found(store, "second")) == ([], [chat_id])
    store.messages.remove(chat_id, answer.id)
    assert _found(store, "second") == []


@pytest.mark.parametrize("typed", ["", " ", "!!!", '"', "…"])
def test_nothing_to_look_for_finds_nothing(store: ChatStore, typed: str) -> None:
    _chat(store, "!!!", "…")
    assert _found(store, typed) == []


def test_a_cancelled_search_returns_what_it_found(store: ChatStore) -> None:
    chat_ids = [_chat(store, "", "soup") for _ in range(5)]
    answers = iter([True, True, False])
    hits = store.search.find("soup", is_wanted=lambda: next(answers))
    assert [hit.chat.id for hit in hits] == chat_ids[:2:-1]


def test_words_of_a_call_and_of_its_result_find_their_chat(store: ChatStore) -> None:
    chat_id = store.chats.create().id
    calls = (ToolCall("1", "write_file", json.dumps({"path": "soup.md", "lines": ["Leeks\nPotatoes"]})),)
    answer = store.messages.add(chat_id, None, MessageContent(role="assistant", content="", state=MessageState.PARTIAL))
    store.messages.finish(answer.id, MessageContent(role="assistant", content="", calls=calls))
    result = ToolResult(call_id="1", tool="write_file", outcome=ToolOutcome.DONE)
    called = store.messages.add(chat_id, answer.id, MessageContent(role="tool", content="", result=result))
    store.messages.finish_call(called.id, "wrote three lines", result)
    for typed in ("write_file", "soup.md", "potatoes", "leeks", "three lines"):
        assert _found(store, typed) == [chat_id], typed
    assert _found(store, "call_id") == []
    assert store.search.find("potatoes")[0].message_id == answer.id
    store.messages.remove(chat_id, answer.id)
    assert _found(store, "potatoes") == []


def test_calls_of_an_imported_or_restored_answer_are_found(store: ChatStore) -> None:
    chat_id = store.chats.create().id
    called = MessageContent(role="assistant", content="", calls=(ToolCall("1", "fetch_url", "no JSON: leeks"),))
    answer = store.messages.add(chat_id, None, called)
    copy = store.transcripts.duplicate(chat_id)
    assert _found(store, "leeks") == [copy.id, chat_id]
    removed = store.messages.of(chat_id)
    store.messages.remove(chat_id, answer.id)
    store.messages.restore(chat_id, removed, answer.id)
    assert sorted(_found(store, "leeks")) == [chat_id, copy.id]
