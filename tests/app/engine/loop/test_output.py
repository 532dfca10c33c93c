from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.engine.fake import END, FakeBackend
from app.engine.loop.output import LOWEST_LOGPROB, IncrementalDetokenizer, LogprobBuffer, most_likely, score
from app.engine.request import TokenLogprob


def stream(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    text = IncrementalDetokenizer(stop)
    shown = []
    for piece in pieces:
        shown.append(text.push(piece))
        if text.is_stopped:
            return shown, True
    return [*shown, text.finish()], False


def test_a_character_of_several_tokens_is_shown_when_complete() -> None:
    assert stream([b"\xe2", b"\x82", b"\xac!"]) == (["", "", "€!", ""], False)


def test_invalid_bytes_become_replacement_characters() -> None:
    assert "".join(stream([b"a\xff", b"b", b"\xe2"])[0]) == "a�b�"


def test_a_stop_string_over_three_tokens_never_leaks_its_begin() -> None:
    assert stream([b"done</", b"en", b"d>more"], ("</end>",)) == (["done", "", ""], True)


def test_an_incomplete_stop_string_is_shown_when_it_differs() -> None:
    assert "".join(stream([b"</", b"em>"], ("</end>",))[0]) == "</em>"


def test_the_earliest_of_several_stop_strings_ends_the_answer() -> None:
    assert stream([b"one two three"], ("three", "two")) == (["one "], True)


def test_decoded_and_shown_characters_are_counted() -> None:
    text = IncrementalDetokenizer(("</end>",))
    counts = []
    for piece in (b"a", b"\xe2\x82", b"\xac</", b"en"):
        text.push(piece)
        counts.append((text.n_decoded, text.end, text.n_shown))
    assert counts == [(1, 1, 1), (1, 2, 1), (4, 4, 2), (6, 6, 2)]


@given(st.text(max_size=60), st.lists(st.text(min_size=1, max_size=4), max_size=3), st.data())
def test_what_is_shown_ends_before_the_first_stop_string(text: str, stop: list[str], data: st.DataObject) -> None:
    raw = text.encode("utf-8", "replace")
    text = raw.decode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    shown, is_stopped = stream(pieces, tuple(stop))
    joined = "".join(shown)
    assert text.startswith(joined)
    assert not any(word in joined for word in stop)
    assert is_stopped == any(word in text for word in stop)
    if not is_stopped:
        assert joined == text


def test_stopped_by_is_the_first_stop_string() -> None:
    text = IncrementalDetokenizer(("c", "b"))
    assert text.push(b"a-b-c") == "a-"
    assert text.stopped_by == "b"


def indented(pieces: list[bytes], n_indent: int) -> tuple[str, bool]:
    text = IncrementalDetokenizer((), n_indent)
    shown = ""
    for piece in pieces:
        shown += text.push(piece)
        if text.is_stopped:
            return shown, True
    return shown + text.finish(), False


def test_a_line_indented_less_ends_the_text_before_it() -> None:
    assert indented([b"x = 1\n    y", b" = 2\n", b"  ", b"z"], 4) == ("x = 1\n    y = 2", True)
    assert indented([b"x\nz"], 1) == ("x", True)


def test_lines_indented_enough_and_empty_ones_go_on() -> None:
    code = b"return\n\n    a\n  \n\t\t\t\tb\n"
    assert indented([code[i : i + 1] for i in range(len(code))], 4) == (code.decode(), False)
    assert indented([b"a\nb\nc"], 0) == ("a\nb\nc", False)


@given(st.text(alphabet="a \t\n", max_size=40), st.integers(1, 4), st.data())
def test_the_same_lines_are_shown_for_any_split_into_tokens(text: str, n_indent: int, data: st.DataObject) -> None:
    whole = indented([text.encode()], n_indent)
    cut = data.draw(st.integers(0, len(text)))
    assert indented([text[:cut].encode(), text[cut:].encode()], n_indent) == whole


logits = st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=50).map(lambda row: np.array(row, np.float32))


class Rows(FakeBackend):
    """A backend whose last batch gave one row of logits."""

    def __init__(self, row: np.ndarray) -> None:
        super().__init__()
        self._row = row

    def logits(self, row: int) -> np.ndarray:
        return self._row


def _logprobs(row: np.ndarray) -> np.ndarray:
    return np.array([score(Rows(row), 0, token, 0)[0] for token in range(len(row))])


@given(logits)
def test_probabilities_sum_to_one_in_the_order_of_the_logits(row: np.ndarray) -> None:
    logprobs = _logprobs(row)
    assert abs(np.exp(logprobs).sum() - 1) < 1e-5
    assert (np.diff(logprobs[np.argsort(row, kind="stable")]) >= 0).all()


@given(logits)
def test_probabilities_are_those_that_64_bits_give(row: np.ndarray) -> None:
    shifted = row.astype(np.float64) - row.max()
    assert np.allclose(_logprobs(row), np.maximum(shifted - np.log(np.exp(shifted).sum()), LOWEST_LOGPROB), atol=1e-4)


def test_an_impossible_token_has_a_finite_log_probability() -> None:
    assert list(_logprobs(np.array([0.0, -np.inf], np.float32))) == [0.0, LOWEST_LOGPROB]


def test_rivals_are_named_and_have_the_numbers_that_they_would_have_themselves() -> None:
    row = np.zeros(END + 1, np.float32)
    row[[END, 65]] = 3.0, 2.0
    chosen, rivals = score(Rows(row), 0, 65, 2)
    assert rivals == ((END, b"<end>", score(Rows(row), 0, END, 0)[0]), (65, b"A", chosen))


@given(logits, st.integers(0, 60))
def test_the_most_likely_tokens_are_those_that_sorting_would_give(row: np.ndarray, n_tokens: int) -> None:
    assert most_likely(row, n_tokens) == list(np.argsort(-row, kind="stable")[:n_tokens])


def test_entries_are_released_once_in_order_and_only_when_their_text_is_shown() -> None:
    logprob_buffer = LogprobBuffer()
    first, second, third = (TokenLogprob(piece, -1.0, (), 0, 0) for piece in (b"\xe2", b"\x82\xac", b"x"))
    for entry, end in ((first, 1), (second, 1), (third, 2)):
        logprob_buffer.add(entry, end)
    assert logprob_buffer.release(0) == ()
    assert logprob_buffer.release(1) == (first, second)
    assert logprob_buffer.release(1) == ()
    assert logprob_buffer.release(2) == (third,)
