"""Code blocks: coloured alike whether they grew or were there at once, without reading everything again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pygments.token import Comment, Keyword, Token
from rich.cells import cell_len

from tests.tui.markdown.test_document import pen, text_of
from tui.markdown import code
from tui.markdown.code import Code, CodeRows, finished_code
from tui.markdown.document import MarkdownDocument

PYTHON = '''class Layer:
    """A layer
    of several lines."""

    def rows(self) -> list[int]:
        return [1, 2]  # two


'''
JAVASCRIPT = """/* A comment
 * of several lines. */
export function rows(a) {
    return a < 1 ? `one ${a}` : 'more';
}

"""
SOURCES = {
    "python": PYTHON,
    "js": JAVASCRIPT,
    "c": "int x = 1; /* a\n b */\n",
    "json": '{"a": [1,\n  2]}\n',
    "": "plain\n",
}


def looks(rows) -> list[list[object]]:
    return [[*rows[y]] for y in range(len(rows))]


@pytest.mark.parametrize("language", SOURCES)
@pytest.mark.parametrize("ending", ["", "```", "```\nThat is all."])
def test_a_long_block_that_grew_equals_one_written_at_once(language, ending):
    source = f"So:\n```{language}\n{SOURCES[language] * 40}{ending}"
    grown = MarkdownDocument()
    for start in range(0, len(source), 77):
        grown.append(source[start : start + 77])
        grown.draw(pen())
    assert looks(grown.draw(pen())) == looks(MarkdownDocument(source).draw(pen()))
    assert grown.source == source


def test_a_growing_block_is_coloured_as_a_finished_one():
    text = PYTHON * 40
    grown, whole = Code("python", text), finished_code("python", text)
    assert [grown.words(n) for n in range(len(grown))] == [whole.words(n) for n in range(len(whole))]
    assert whole.words(1)[-1] == (Token.Literal.String.Doc, '"""A layer')
    assert (Keyword, "return") in grown.words(5)
    assert (Comment.Single, "# two") in grown.words(5)


@pytest.mark.slow
def test_only_the_end_of_a_growing_block_is_read_again(monkeypatch):
    read, lengths = code._Reader.read, []
    monkeypatch.setattr(
        code._Reader, "read", lambda self, text, *rest: lengths.append(len(text)) or read(self, text, *rest)
    )
    monkeypatch.setattr("tui.markdown.document.markdown_parser", _parser_of_little)
    document = MarkdownDocument("```python\n")
    for _ in range(400):
        document.append(PYTHON)
        lines = document.draw(pen())
        looks_of_screen = [lines[y] for y in range(max(0, len(lines) - 40), len(lines))]
        assert looks_of_screen
    assert len(lines) > 3000
    assert max(lengths) < 5000


def _parser_of_little():
    from tui.markdown.document import _new_parser

    parser = _new_parser()
    parse = parser.parse

    def checked(text, *rest):
        assert len(text) < 1000
        return parse(text, *rest)

    parser.parse = checked
    return parser


def test_a_line_that_looks_the_same_is_the_same_object():
    growing = Code("python", PYTHON)
    rows = CodeRows(growing, 40, "monokai")
    former = [rows[y] for y in range(len(rows) - 1)]
    growing.grow(["x = 1"], "", is_finished=False)
    assert all(rows[y] is line for y, line in enumerate(former))


def test_what_looked_like_the_end_of_a_block_may_become_a_row_of_it():
    grown = MarkdownDocument("```sh\nls\n```")
    assert "```" not in text_of(looks(grown.draw(pen())))
    grown.append("x\n")
    assert text_of(looks(grown.draw(pen()))) == text_of(looks(MarkdownDocument("```sh\nls\n```x\n").draw(pen())))
    assert "```x" in text_of(looks(grown.draw(pen())))


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("```python\nx\n```", "python"),
        ("~~~sh title=run.sh\nx\n~~~", "sh title=run.sh"),
        ("- item\n\n  ```rust\n  x\n  ```", "rust"),
        ("> ```html\n> x\n> ```", "html"),
    ],
)
def test_a_block_shows_its_language_above_its_first_row(source, shown):
    lines = text_of(looks(MarkdownDocument(source).draw(pen()))).splitlines()
    above = next(number for number, line in enumerate(lines) if line.endswith(" x")) - 1
    assert lines[above].removesuffix("c copy").rstrip().endswith(f" {shown}")


def test_a_block_without_a_language_shows_none():
    assert text_of(looks(MarkdownDocument("```\nx\n```").draw(pen()))).split() == ["c", "copy", "x"]


@given(st.text(alphabet="ab \t中🌆", max_size=80), st.integers(3, 20))
def test_rows_are_broken_without_losing_a_letter(row, width):
    rows = CodeRows(Code("", f"{row}\n"), width, "monokai")
    lines = ["".join(segment.text for segment in rows[y]) for y in range(1, len(rows) - 1)]
    assert "".join("".join(lines).split()) == "".join(row.split())
    assert all(cell_len(line) == width for line in lines)


def test_a_very_long_row_has_no_colours_and_the_next_one_has():
    long = Code("python", "x = " + "1 + " * 400 + "1\nreturn\n")
    assert [kind for kind, _ in long.words(0)] == [Token.Text]
    assert long.words(1) == [(Keyword, "return")]
