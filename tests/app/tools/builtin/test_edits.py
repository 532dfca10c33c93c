"""The difference of two texts: it makes the one of the other, and stays bounded."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.builtin.edits import MAX_CHARACTERS, EditError, NotTextError, TextForm, diff_of, edited, read_text

_NO_NEWLINE = "\\ No newline at end of file"


def applied(before: str, diff: str) -> str:
    """Return what `diff` makes of `before`, as patch(1) does."""
    old, new, place = before.split("\n"), [], 0
    lines = diff.split("\n") if diff else []
    at = 0
    while at < len(lines):
        found = re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", lines[at])
        assert found is not None, lines[at]
        begin, n_old = int(found[1]), int(found[2] or 1)
        n_new = int(found[4] or 1)
        begin -= 1 if n_old else 0
        new += old[place:begin]
        place, at = begin + n_old, at + 1
        while n_old or n_new or (at < len(lines) and lines[at] == _NO_NEWLINE):
            kind, text = lines[at][0], lines[at][1:]
            at += 1
            if kind == "\\":
                continue
            n_old -= kind in " -"
            n_new -= kind in " +"
            if kind in " +":
                new.append(text)
    is_unended = diff.endswith(_NO_NEWLINE) and not diff.split("\n")[-2].startswith("-")
    rest = old[place:]
    return "\n".join([*new, *rest] if rest else [*new, *([] if is_unended else [""])])


def test_a_change_is_shown_with_three_lines_around_it() -> None:
    before = "".join(f"{number}\n" for number in range(20))
    diff = diff_of(before, before.replace("9\n", "nine\n", 1))
    assert diff.text == "@@ -7,7 +7,7 @@\n 6\n 7\n 8\n-9\n+nine\n 10\n 11\n 12"
    assert diff.summary == "+1 −1 lines"


def test_equal_texts_have_no_difference() -> None:
    assert diff_of("a\n", "a\n").text == ""


def test_a_new_and_an_emptied_text() -> None:
    assert diff_of("", "a\nb\n").text == "@@ -0,0 +1,2 @@\n+a\n+b"
    assert diff_of("a\n", "").text == "@@ -1 +0,0 @@\n-a"


def test_a_last_line_without_newline_is_marked() -> None:
    assert diff_of("a\n", "a").text == f"@@ -1 +1 @@\n-a\n+a\n{_NO_NEWLINE}"


def test_what_is_left_out_of_a_large_difference_is_said() -> None:
    diff = diff_of("", "x" * 99 + "\n" + ("y" * 99 + "\n") * 50_000)
    assert len(diff.text) < MAX_CHARACTERS + 100
    assert re.search(r"\[46,0\d\d more lines of this difference are not shown\]$", diff.text)
    assert diff.n_added == 50_001


def test_texts_that_differ_everywhere_take_no_time() -> None:
    before, after = ("".join(f"{word} {number}\n" for number in range(100_000)) for word in ("old", "new"))
    assert diff_of(before, after).n_added == 100_000


def test_lines_are_compared_one_by_one_only_where_that_takes_little_time() -> None:
    def n_removed(n_lines: int) -> int:
        before = "".join(f"line {number}\n" for number in range(n_lines))
        return diff_of(before, re.sub("line (.*[02468])\n", r"new \1\n", before)).n_removed

    assert n_removed(200) == 100
    assert n_removed(1_600) == 1_599, "all between the first difference and the last: 8,000 lines would take 8 s"


def test_characters_that_are_not_shown_are_counted() -> None:
    assert "[2 control characters come, which are not shown]" in diff_of("a\n", "a\u202e\x1b\n").text


_LINES = st.lists(st.sampled_from("abc"), max_size=30).map(lambda lines: "".join(f"{line}\n" for line in lines))


@given(_LINES, _LINES)
def test_the_difference_makes_one_text_of_the_other(before: str, after: str) -> None:
    diff = diff_of(before, after)
    assert applied(before, diff.text) == after


LF, CRLF = TextForm(), TextForm(newline="\r\n")


def test_a_text_is_replaced_and_the_rest_stays() -> None:
    assert edited("a\nb\nc\n", "b\n", "B\nBB\n", LF) == "a\nB\nBB\nc\n"


def test_the_new_text_takes_the_line_endings_of_what_it_replaces() -> None:
    assert edited("a\r\nb\r\nc\n", "a\nb\n", "x\ny\nz\n", LF) == "x\r\ny\r\nz\r\nc\n"
    assert edited("a\r\nb\r\nc\n", "c\n", "x\ny\n", CRLF) == "a\r\nb\r\nx\ny\n"
    assert edited("a\r\nb\r\n", "b", "x\ny", CRLF) == "a\r\nx\r\ny\r\n"


def test_a_text_that_is_missing_or_there_twice_is_refused_with_its_lines() -> None:
    with pytest.raises(EditError, match="not in the file"):
        edited("a\n", "b", "c", LF)
    with pytest.raises(EditError, match="at lines 1, 3"):
        edited("x\ny\nx\n", "x", "z", LF)
    with pytest.raises(EditError, match="1, 1, 1, 1, 1 and more"):
        edited("a" * 100, "a", "b", LF)


def test_a_text_that_overlaps_itself_is_there_twice() -> None:
    with pytest.raises(EditError, match="more than once"):
        edited("aaa", "aa", "b", LF)


def test_a_text_that_differs_by_spaces_only_is_hinted_at() -> None:
    with pytest.raises(EditError, match="Line 2 differs only by spaces"):
        edited("a\n    b = 1\nc\n", "b = 1\n c", "x", LF)


@pytest.mark.parametrize(
    ("text", "old", "hint"),
    [
        (
            "x\ndef f():\n    return 1\n",
            "def f():\n    return 2\n",
            'line 3 is another: copy it exactly. It is "    return 1"',
        ),
        ("}\na\n}\nreturn bar\n", "\n}\nreturn bar\nend", "the file ends after line 4"),
        ("}\na\n}\nb\nc\n", "  \n}\nb\nd", 'line 5 is another: copy it exactly. It is "c"'),
        ("a\n    b\nc\n", "a\nb\nc\n", 'Line 2 differs only by spaces: copy it exactly. It is "    b"'),
        ("a\nb\n", "  \na\nb", 'Line 1 is most like it: copy it exactly. It is "a"'),
        ("port = 1\n", "port: 1\nhost", 'Line 1 is most like it: copy it exactly. It is "port = 1"'),
    ],
)
def test_the_line_that_an_edit_has_wrong_is_quoted_and_not_one_before_it(text: str, old: str, hint: str) -> None:
    with pytest.raises(EditError) as raised:
        edited(text, old, "x", LF)
    assert hint in raised.value.remedy


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("a", "a"), ("a\r\nb", "a\nb")])
def test_an_edit_that_does_nothing_is_refused(old: str, new: str) -> None:
    with pytest.raises(EditError):
        edited("a\r\nb", old, new, LF)


_TEXT = st.text(alphabet="ab \n\té", max_size=12)
_PIECES = st.lists(_TEXT | st.just("\r\n"), max_size=8).map("".join)


@given(_PIECES, _PIECES.filter(bool), _PIECES, st.sampled_from([LF, CRLF]))
def test_what_is_not_replaced_stays_byte_for_byte(text: str, old: str, new: str, form: TextForm) -> None:
    plain, plain_old, plain_new = (each.replace("\r\n", "\n") for each in (text, old, new))
    n_found = sum(plain.startswith(plain_old, place) for place in range(len(plain)))
    if n_found != 1 or plain_old == plain_new:
        with pytest.raises(EditError):
            edited(text, old, new, form)
        return
    found = edited(text, old, new, form)
    place = plain.find(plain_old)
    assert found.replace("\r\n", "\n") == plain[:place] + plain_new + plain[place + len(plain_old) :]
    n_crlf_before = plain[:place].count("\n") and text.replace("\r\n", "\0").replace("\n", "N")
    assert found.startswith(_original(text, place)) or not n_crlf_before
    assert found.endswith(text[len(_original(text, place + len(plain_old))) :])


def _original(text: str, n_characters: int) -> str:
    """Return the beginning of `text` that has `n_characters`, a line ending counted as one."""
    marked = text.replace("\r\n", "\0")[:n_characters]
    return marked.replace("\0", "\r\n")


@given(_PIECES.filter(lambda text: "b" in text))
def test_an_edit_and_its_reverse_give_the_same_bytes_again(text: str) -> None:
    with_mark = text.replace("b", "Z", 1).replace("b", "a")
    there = edited(with_mark, "Z", "Y", LF)
    assert edited(there, "Y", "Z", LF) == with_mark


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
    with pytest.raises(NotTextError, match="is not text"):
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
