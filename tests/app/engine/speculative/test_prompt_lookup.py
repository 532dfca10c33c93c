from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.engine.loop.sequence import Sequence
from app.engine.request import FinishReason
from app.engine.speculative.cost_model import AGREEMENT, Acceptance
from app.engine.speculative.draft_source import DraftRequest
from app.engine.speculative.prompt_lookup import MAX_CHANGE_TOKENS, CrossRequestLookup, EditLookup
from tests.app.engine.sequences import new_sequence


def sequence(prompt: str, answer: str, n_cached: int = 0) -> Sequence:
    new = new_sequence(prompt.encode(), answer.encode(), {CrossRequestLookup.name: Acceptance()})
    new.n_cached = n_cached
    return new


def finish(texts: CrossRequestLookup, *finished: Sequence) -> None:
    for item in finished:
        item.finish_reason = FinishReason.STOP
        texts.release(item)


def proposed(texts: CrossRequestLookup, running: Sequence, n_tokens: int = 5) -> str:
    (draft,) = texts.propose([DraftRequest(running, n_tokens)])
    return bytes(draft.tokens).decode()


def test_the_text_of_another_request_is_proposed() -> None:
    texts = CrossRequestLookup()
    finish(texts, sequence("Spell it. ", "supercalifragilistic"))
    assert proposed(texts, sequence("Once more. ", "It is superca")) == "lifra"


def test_a_growing_text_keeps_its_place_and_finds_texts_that_were_added_meanwhile() -> None:
    texts = CrossRequestLookup()
    finish(texts, sequence("p", "abcdefgh"))
    running = sequence("q", "abc")
    assert proposed(texts, running) == "defgh"
    running.tokens += b"d"
    finish(texts, sequence("r", "uvwxyz"))
    assert proposed(texts, running, 2) == "ef"
    running.tokens += b"uvw"
    assert proposed(texts, running) == "xyz"


def test_the_estimate_is_empty_before_any_request_has_finished() -> None:
    texts = CrossRequestLookup()
    running = sequence("p", "abc")
    assert list(texts.estimate(running, 5, 1).chances) == []
    assert texts.n_probe_tokens(running) == 0


def test_a_preempted_or_empty_answer_adds_nothing() -> None:
    texts = CrossRequestLookup()
    texts.release(sequence("p", "put back"))
    finish(texts, sequence("never answered", ""))
    assert texts.n_probe_tokens(sequence("p", "a")) == 0


def test_cached_tokens_are_not_indexed_twice() -> None:
    texts = CrossRequestLookup()
    finish(texts, sequence("#" + "x" * 100, "abc", n_cached=100))
    assert proposed(texts, sequence("q", "#")) == ""
    assert proposed(texts, sequence("q", "xxa"), 2) == "bc"


def test_the_oldest_texts_are_dropped_and_the_newer_half_stays() -> None:
    texts = CrossRequestLookup(max_tokens=40)
    for letter in "abc":
        finish(texts, sequence(letter, f"{letter}123456789012345"))
    assert [proposed(texts, sequence("q", f"{letter}{letter}"), 1) for letter in "abc"] == ["", "1", "1"]
    assert sum(len(index) for index in texts._indexes) <= 40


def test_a_text_beyond_the_limit_is_indexed_in_part() -> None:
    texts = CrossRequestLookup(max_tokens=40)
    finish(texts, sequence("p", "a" * 500 + "bcd"))
    assert proposed(texts, sequence("q", "aab"), 2) == "cd"
    assert sum(len(index) for index in texts._indexes) <= 40


TEXT = "Anna went to town. There Anna met Bob, and Bob liked what Anna wore. "


def new_text(prompt: str) -> Sequence:
    return new_sequence(prompt.encode(), (), {EditLookup.name: Acceptance(AGREEMENT)}, limit=65536)


def extend(sequence: Sequence, text: str) -> None:
    for token in text.encode():
        sequence.append(token)


def expected(source: EditLookup, sequence: Sequence, n_tokens: int = 12) -> str:
    (draft,) = source.propose([DraftRequest(sequence, n_tokens)])
    return bytes(draft.tokens).decode()


def followed(source: EditLookup, sequence: Sequence, answer: str) -> list[str]:
    """Append `answer` letter by letter; return the proposal before each letter."""
    seen = []
    for letter in answer:
        seen.append(expected(source, sequence, 1))
        extend(sequence, letter)
    return seen


def test_a_repeated_text_is_expected_to_continue() -> None:
    source, sequence = EditLookup(), new_text(TEXT)
    followed(source, sequence, "Anna went")
    assert expected(source, sequence) == " to town. Th"


def test_nothing_is_expected_before_the_place_is_found() -> None:
    source, sequence = EditLookup(), new_text(TEXT)
    assert followed(source, sequence, "Anna ") == [""] * 5


def test_after_a_change_the_text_continues_at_once() -> None:
    source, sequence = EditLookup(), new_text(TEXT)
    followed(source, sequence, "Anna went by ")
    assert expected(source, sequence, 8) == "town. Th"


def test_a_replacement_is_expected_again_wherever_the_same_words_occur() -> None:
    source, sequence = EditLookup(), new_text(TEXT)
    followed(source, sequence, "Anna went to town. There Zoe met Bob, and")
    assert expected(source, sequence, 25) == " Bob liked what Zoe wore."


def test_a_replacement_that_has_begun_is_expected_to_the_end() -> None:
    source, sequence = EditLookup(), new_text(TEXT)
    followed(source, sequence, "Anna went to town. There Eve-Marie met Bob, and Bob liked what Eve")
    assert expected(source, sequence, 12) == "-Marie wore."


def test_after_a_large_change_the_place_is_lost_until_the_text_repeats() -> None:
    source, sequence = EditLookup(), new_text(TEXT)
    followed(source, sequence, "Anna went" + "0123456789-xyz"[: MAX_CHANGE_TOKENS + 1])
    assert expected(source, sequence) == ""
    followed(source, sequence, "and Bob liked")
    assert expected(source, sequence, 5) == " what"


def test_a_released_sequence_is_found_again() -> None:
    source, sequence = EditLookup(), new_text(TEXT)
    followed(source, sequence, "Anna went")
    source.release(sequence)
    assert expected(source, sequence, 8) == " to town"


@given(st.lists(st.text("ab,", max_size=12), max_size=12), st.integers(1, 9))
def test_never_more_tokens_are_proposed_than_requested(parts: list[str], n_tokens: int) -> None:
    source, sequence = EditLookup(), new_text("abba,abab,baba,aabb;")
    for part in parts:
        extend(sequence, part)
        assert len(expected(source, sequence, n_tokens)) <= n_tokens
