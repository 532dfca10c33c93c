from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.engine.loop.detokenizer import IncrementalDetokenizer


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
