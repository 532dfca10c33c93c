from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.loop.sequence import Sequence
from app.engine.project_texts import corpus_name, keep_texts
from app.engine.speculative import project_lookup
from app.engine.speculative.cost_model import NO_ESTIMATE, Acceptance
from app.engine.speculative.draft_source import DraftRequest
from app.engine.speculative.project_lookup import (
    MAX_CORPORA,
    MIN_MATCHED_TOKENS,
    N_COMPARED_TOKENS,
    CorpusIndex,
    CorpusLookup,
    TextCorpora,
)
from tests.app.engine.sequences import new_sequence

MINE = "me"


def tokenize(text: str, _add_special: bool, _parse_special: bool) -> list[int]:
    return list(text.encode())


@pytest.fixture
def corpora(tmp_path: Path) -> Iterator[TextCorpora]:
    made = TextCorpora(tmp_path, tokenize)
    yield made
    made.close()


def keep(folder: Path, project: str, *texts: str, owner: str = MINE, chat: str = "chat") -> None:
    keep_texts(folder, corpus_name(owner, project), chat, texts)


def prepared(corpora: TextCorpora, project: str, owner: str = MINE) -> CorpusIndex | None:
    """Return the index of a project once everything that was asked for before has been made."""
    corpora.prepare(owner, project)
    corpora._waiting.join()
    return corpora.index_of(owner, project)


def sequence_of(text: str, project: str = "p", owner: str = MINE) -> Sequence:
    return new_sequence(text.encode(), (), {CorpusLookup.name: Acceptance()}, owner=owner, corpus=project)


def proposed(lookup: CorpusLookup, running: Sequence, n_tokens: int = 5) -> str:
    (draft,) = lookup.propose([DraftRequest(running, n_tokens)])
    return bytes(draft.tokens).decode()


TOKENS = st.lists(st.integers(0, 3), max_size=60)


def naive_match(texts: list[list[int]], tail: list[int]) -> tuple[int, list[list[int]]]:
    """Return the length of the longest end of `tail` in `texts`, and what follows each of its places."""
    for n_matched in range(min(len(tail), N_COMPARED_TOKENS), 0, -1):
        end = tail[len(tail) - n_matched :]
        found = [
            text[place + n_matched :]
            for text in texts
            for place in range(len(text) - n_matched + 1)
            if text[place : place + n_matched] == end
        ]
        if found:
            return n_matched, found
    return 0, []


@given(st.lists(TOKENS, max_size=4), TOKENS)
def test_a_match_is_the_longest_end_of_the_text_that_occurs_and_has_all_its_places(
    texts: list[list[int]], tail: list[int]
) -> None:
    index = CorpusIndex(texts)
    n_matched, followed = naive_match(texts, tail)
    match = index.find(tail)
    assert (match.n_matched, match.end - match.begin) == (n_matched, len(followed))


@given(st.lists(TOKENS, min_size=1, max_size=4), TOKENS, st.integers(1, 12))
def test_what_is_proposed_followed_there_and_each_token_is_the_most_frequent_one(
    texts: list[list[int]], tail: list[int], n_tokens: int
) -> None:
    index = CorpusIndex(texts)
    match = index.find(tail)
    _, followed = naive_match(texts, tail)
    draft = index.continuation(match, n_tokens) if match.n_matched else None
    if draft is None:
        assert not followed
        return
    assert len(draft.tokens) == len(draft.chances) <= n_tokens
    for n_before, (token, chance) in enumerate(zip(draft.tokens, draft.chances, strict=True)):
        following = [rest[:1] for rest in followed]
        assert chance == following.count([token]) / len(following)
        assert all(following.count([token]) >= following.count([other]) for rest in following for other in rest)
        followed = [rest[1:] for rest in followed if rest[:1] == [token]]
        assert followed, n_before
    if len(draft.tokens) < n_tokens:  # it ends where most of the texts do
        ended = sum(not rest for rest in followed)
        assert all(ended >= sum(rest[:1] == [token] for rest in followed) for token in range(4))


def test_of_equally_frequent_continuations_that_of_the_latest_text_is_proposed() -> None:
    index = CorpusIndex([list(b"one two three"), list(b"one two four")])
    assert bytes(index.continuation(index.find(b"one two "), 5).tokens) == b"four"


def test_nothing_is_matched_across_a_picture_or_between_two_texts() -> None:
    index = CorpusIndex([list(b"abc"), list(b"def")])
    assert index.find(b"bcde").n_matched == 2
    assert index.find([*b"ab", -1, *b"c"]).n_matched == 1
    assert index.continuation(index.find(b"abc"), 5).tokens == ()


def test_an_index_without_texts_finds_nothing() -> None:
    assert CorpusIndex([]).find(b"abc").n_matched == 0


def test_texts_of_an_earlier_chat_are_proposed_in_the_project_they_are_of(corpora: TextCorpora, tmp_path: Path) -> None:
    keep(tmp_path, "p", "supercalifragilistic")
    assert prepared(corpora, "p") is not None
    assert prepared(corpora, "q") is None
    lookup = CorpusLookup(corpora)
    assert proposed(lookup, sequence_of("It is superca")) == "lifra"
    assert proposed(lookup, sequence_of("It is superca", project="q")) == ""
    assert proposed(lookup, sequence_of("It is superca", project="")) == ""


def test_nobody_drafts_from_the_texts_of_another_owner(corpora: TextCorpora, tmp_path: Path) -> None:
    keep(tmp_path, "p", "supercalifragilistic")
    assert prepared(corpora, "p", owner="she") is None
    assert CorpusLookup(corpora).estimate(sequence_of("It is superca", owner="she"), 5, 1) is NO_ESTIMATE


def test_a_short_match_is_neither_drafted_nor_probed(corpora: TextCorpora, tmp_path: Path) -> None:
    keep(tmp_path, "p", "supercalifragilistic")
    prepared(corpora, "p")
    lookup = CorpusLookup(corpora)
    for n_matched in (MIN_MATCHED_TOKENS - 1, MIN_MATCHED_TOKENS):
        running, is_enough = sequence_of("x" + "supercalifragilistic"[:n_matched]), n_matched == MIN_MATCHED_TOKENS
        assert lookup.n_probe_tokens(running) == is_enough
        assert (lookup.estimate(running, 5, 1).first > 0.5) == is_enough


def test_texts_that_come_later_are_found_by_the_next_request(corpora: TextCorpora, tmp_path: Path) -> None:
    keep(tmp_path, "p", "supercalifragilistic")
    prepared(corpora, "p")
    lookup, running = CorpusLookup(corpora), sequence_of("It is antidis")
    assert proposed(lookup, running) == ""
    keep(tmp_path, "p", "antidisestablishmentarianism")
    prepared(corpora, "p")
    assert proposed(lookup, running) == "estab"


def test_a_text_that_is_kept_again_changes_no_index(corpora: TextCorpora, tmp_path: Path) -> None:
    keep(tmp_path, "p", "supercalifragilistic")
    first = prepared(corpora, "p")
    keep(tmp_path, "p", "supercalifragilistic", chat="another")
    assert prepared(corpora, "p") is first


def test_removed_texts_are_proposed_no_more(corpora: TextCorpora, tmp_path: Path) -> None:
    keep(tmp_path, "p", "supercalifragilistic")
    prepared(corpora, "p")
    lookup = CorpusLookup(corpora)
    for path in tmp_path.glob("*/*"):
        path.unlink()
    lookup.clear()
    assert proposed(lookup, sequence_of("It is superca")) == ""
    assert prepared(corpora, "p") is None
    assert corpora.n_bytes == 0


def test_an_index_that_is_made_while_texts_are_removed_is_dropped(tmp_path: Path) -> None:
    keep(tmp_path, "p", "supercalifragilistic")
    is_tokenizing, may_go_on = threading.Event(), threading.Event()

    def slow(text: str, _add_special: bool, _parse_special: bool) -> list[int]:
        is_tokenizing.set()
        may_go_on.wait()
        return list(text.encode())

    corpora = TextCorpora(tmp_path, slow)
    corpora.prepare(MINE, "p")
    is_tokenizing.wait()
    corpora.clear()
    may_go_on.set()
    corpora.close()
    assert corpora.index_of(MINE, "p") is None


def test_only_a_few_projects_and_only_so_many_tokens_are_in_memory(
    corpora: TextCorpora, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_lookup, "MAX_CORPUS_TOKENS", 100)
    for number in range(MAX_CORPORA + 2):
        keep(tmp_path, f"p{number}", *(f"{number}{letter}" * 30 for letter in "abcdef"))
        index = prepared(corpora, f"p{number}")
        assert index is not None
        assert 90 < len(index) <= 100
    assert len(corpora._indexes) <= MAX_CORPORA
    assert corpora.n_bytes <= 12 * 100 * MAX_CORPORA


def test_a_damaged_text_is_dropped_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    corpora = TextCorpora(tmp_path, tokenize, said.append)
    keep(tmp_path, "p", "supercalifragilistic", "antidisestablishmentarianism")
    path = min(tmp_path.glob("*/*"))
    path.write_bytes(path.read_bytes()[:-1])
    assert prepared(corpora, "p") is not None
    corpora.close()
    assert [sentence[:6] for sentence in said] == ["Remove"]
    assert not path.exists()


def test_the_tokenizer_gets_lines_in_short_pieces(tmp_path: Path) -> None:
    pieces: list[str] = []

    def recorded(text: str, _add_special: bool, _parse_special: bool) -> list[int]:
        pieces.append(text)
        return list(text.encode())

    text = "".join(f"line {number}\n" for number in range(2_000)) + "x" * 10_000
    keep(tmp_path, "p", text)
    corpora = TextCorpora(tmp_path, recorded)
    index = prepared(corpora, "p")
    corpora.close()
    assert index is not None
    assert len(index) == len(text) + 1
    assert max(map(len, pieces)) <= 4_096
    assert all(piece.startswith("line") for piece in pieces[:4])


def test_nothing_is_made_after_the_end(tmp_path: Path) -> None:
    corpora = TextCorpora(tmp_path, tokenize)
    corpora.close()
    corpora.prepare(MINE, "p")
    assert corpora._thread is None
