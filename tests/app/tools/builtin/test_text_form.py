"""Reading bytes as text so that writing the text gives the same bytes again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.builtin.text_form import NotTextError, TextForm, read_text


@pytest.mark.parametrize(
    ("content", "text", "title"),
    [
        (b"", "", ""),
        ("é\n".encode(), "é\n", ""),
        (b"a\r\nb\r\n", "a\r\nb\r\n", "CRLF line endings"),
        (b"\xef\xbb\xbfa\n", "a\n", "UTF-8"),
        ("a\r\n".encode("utf-16"), "a\r\n", "UTF-16, CRLF line endings"),
        (b"\xfe\xff\x00a", "a", "UTF-16"),
        (b"caf\xe9 \x93x\x94\n", "café “x”\n", "Windows-1252"),
    ],
)
def test_a_text_is_read_with_its_form(content: bytes, text: str, title: str) -> None:
    found, form = read_text(content)
    assert (found, form.title) == (text, title)
    assert form.encode(found) == content


@pytest.mark.parametrize("content", [b"\x7fELF\0", b"a\0b", b"\xff\xfea", b"\x89PNG\r\n\x1a\n", b"\xe9\x81\x01"])
def test_what_is_no_text_is_refused_with_its_size(content: bytes) -> None:
    with pytest.raises(NotTextError, match="is no text"):
        read_text(content)


def test_a_character_that_the_encoding_lacks_is_refused() -> None:
    with pytest.raises(NotTextError, match="u4e09"):
        read_text(b"caf\xe9")[1].encode("三")
    with pytest.raises(NotTextError):
        TextForm().encode("\ud800")


def test_the_ending_of_most_lines_counts() -> None:
    assert read_text(b"a\r\nb\r\nc\n")[1].newline == "\r\n"
    assert read_text(b"a\r\nb\nc\n")[1].newline == "\n"
    assert TextForm(newline="\r\n").with_endings("a\nb\r\nc") == "a\r\nb\r\nc"


@given(st.binary() | st.text().map(str.encode) | st.text().map(lambda text: text.encode("utf-16", "replace")))
def test_whatever_is_read_as_text_gives_the_same_bytes_again(content: bytes) -> None:
    try:
        text, form = read_text(content)
    except NotTextError:
        return
    assert form.encode(text) == content
