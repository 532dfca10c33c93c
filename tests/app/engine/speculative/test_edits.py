from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.engine.fake import FakeBackend
from app.engine.loop.sequence import Sequence
from app.engine.request import Request, SamplingParams
from app.engine.speculative.acceptance import AGREEMENT, Acceptance
from app.engine.speculative.draft_source import DraftRequest
from app.engine.speculative.prompt_lookup import MAX_CHANGE_TOKENS, EditLookup

GREEDY = SamplingParams(temperature=0.0)
TEXT = "Anna went to town. There Anna met Bob, and Bob liked what Anna wore. "


def new_sequence(prompt: str) -> Sequence:
    sampler = FakeBackend().new_sampler(GREEDY, ignore_eos=True)
    acceptance = {EditLookup.name: Acceptance(AGREEMENT)}
    request = Request(request_id="a", prompt=prompt, sampling=GREEDY)
    return Sequence(request, 1, list(prompt.encode()), len(prompt), 65536, sampler, acceptance, 0.0)


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
    source, sequence = EditLookup(), new_sequence(TEXT)
    followed(source, sequence, "Anna went")
    assert expected(source, sequence) == " to town. Th"


def test_nothing_is_expected_before_the_place_is_found() -> None:
    source, sequence = EditLookup(), new_sequence(TEXT)
    assert followed(source, sequence, "Anna ") == [""] * 5


def test_after_a_change_the_text_continues_at_once() -> None:
    source, sequence = EditLookup(), new_sequence(TEXT)
    followed(source, sequence, "Anna went by ")
    assert expected(source, sequence, 8) == "town. Th"


def test_a_replacement_is_expected_again_wherever_the_same_words_occur() -> None:
    source, sequence = EditLookup(), new_sequence(TEXT)
    followed(source, sequence, "Anna went to town. There Zoe met Bob, and")
    assert expected(source, sequence, 25) == " Bob liked what Zoe wore."


def test_a_replacement_that_has_begun_is_expected_to_the_end() -> None:
    source, sequence = EditLookup(), new_sequence(TEXT)
    followed(source, sequence, "Anna went to town. There Eve-Marie met Bob, and Bob liked what Eve")
    assert expected(source, sequence, 12) == "-Marie wore."


def test_after_a_large_change_the_place_is_lost_until_the_text_repeats() -> None:
    source, sequence = EditLookup(), new_sequence(TEXT)
    followed(source, sequence, "Anna went" + "0123456789-xyz"[: MAX_CHANGE_TOKENS + 1])
    assert expected(source, sequence) == ""
    followed(source, sequence, "and Bob liked")
    assert expected(source, sequence, 5) == " what"


def test_a_released_sequence_is_found_again() -> None:
    source, sequence = EditLookup(), new_sequence(TEXT)
    followed(source, sequence, "Anna went")
    source.release(sequence)
    assert expected(source, sequence, 8) == " to town"


@given(st.lists(st.text("ab,", max_size=12), max_size=12), st.integers(1, 9))
def test_never_more_tokens_are_proposed_than_requested(parts: list[str], n_tokens: int) -> None:
    source, sequence = EditLookup(), new_sequence("abba,abab,baba,aabb;")
    for part in parts:
        extend(sequence, part)
        assert len(expected(source, sequence, n_tokens)) <= n_tokens
