"""A document that grows looks at any time as if it had been there at once, and its final blocks are drawn once."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from rich.style import Style

from tests.tui.hostile import HOSTILE, controls_in, sequences
from tests.tui.markdown.test_document_parser import REFERENCES
from tui.markdown.document import MarkdownDocument
from tui.markdown.widget import ADDRESS, MarkdownRenderer

PIECES = (
    *(
        "word ",
        "*so* ",
        "`x` ",
        "\n",
        "\n\n",
        "# Head\n",
        "---\n",
        "===\n",
        "- item\n",
        "  - inner\n",
        "- [ ] do\n",
        "[x] ",
        "1. one\n",
        "> said\n",
    ),
    *(
        "```python\n",
        "def f(): pass\n",
        "```\n",
        "    code\n",
        "| a | b |\n",
        "|---|---|\n",
        "| 1 | 2 |\n",
        "\t",
        "<b>",
    ),
    *(
        "[name]",
        "[name]: http://x.example\n",
        "[to](http://y.example)",
        "![see](z.png)",
        "\\",
        "**",
        "~~~\n",
        "中文",
        "🌆",
        "\\[\n",
        "\\]\n",
        "$$",
        "$$\n",
        "\\(x^2\\)",
        "```\n",
    ),
)


def pen(width: int = 40) -> MarkdownRenderer:
    return MarkdownRenderer(
        width, Style(color="blue"), Style(color="red"), Style(dim=True), Style(bold=True), "monokai"
    )


def text_of(lines) -> str:
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)


@pytest.mark.slow
@given(st.lists(st.sampled_from(PIECES), max_size=30), st.data())
def test_a_document_that_grew_equals_one_written_at_once(pieces, data):
    grown, source, drawing = MarkdownDocument(), "".join(pieces), pen()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(source)), max_size=8)))
    for start, end in pairwise([0, *cuts, len(source)]):
        grown.append(source[start:end])
        at_once = MarkdownDocument(source[:end]).draw(drawing)
        assert [[*line] for line in grown.draw(drawing)] == [[*line] for line in at_once]
    assert grown.source == source


def test_an_address_that_is_being_written_is_no_address_yet():
    grown, drawing = MarkdownDocument("[name] first\n\n[name]: h"), pen()
    assert "(h)" in text_of(grown.draw(drawing))
    grown.append("ttp://x.example\n\n[name] again")
    assert text_of(grown.draw(drawing)).count("(http://x.example)") == 2


@pytest.mark.parametrize(
    ("begun", "more"), [("  - inner\n*", "so* said"), ("text\n| a |\n|---|", "x"), ("- a\n1.", "5 GB"), ("a\n<b>", "x")]
)
def test_a_row_that_continues_may_belong_to_another_block(begun, more):
    grown, drawing = MarkdownDocument(begun), pen()
    grown.draw(drawing)
    grown.append(more)
    assert [*map(list, grown.draw(drawing))] == [*map(list, MarkdownDocument(begun + more).draw(drawing))]


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.integers(1, 60))
def test_no_line_is_wider_than_it_may_be(pieces, width):
    lines = MarkdownDocument("".join(pieces)).draw(pen(width))
    assert all(Segment.get_line_length([*line]) <= max(width, 2) for line in lines)


@dataclass(frozen=True)
class CountingPen:
    draw: list[str] = field(default_factory=list, compare=False)

    def lines(self, block):
        self.draw.append(block[0].type)
        return [[Segment(block[0].type)]]

    def code_lines(self, code):
        self.draw.append("code")
        return [[Segment("code")]]


def test_a_final_block_is_drawn_once():
    document, counting = MarkdownDocument(), CountingPen()
    for text in ("# He", "ad\n\nOne", " and", " more\n\n- a\n", "- b\n"):
        document.append(text)
        document.draw(counting)
    document.draw(counting)
    assert counting.draw == [
        *("heading_open", "heading_open", "paragraph_open", "paragraph_open"),
        *("paragraph_open", "bullet_list_open", "bullet_list_open"),
    ]


def test_blocks_above_a_growing_one_are_drawn_once():
    document, counting = MarkdownDocument("```python\nx = 1\n```\n\n"), CountingPen()
    for word in ("one ", "two ", "three"):
        document.append(word)
        document.draw(counting)
    assert counting.draw == ["code", *["paragraph_open"] * 3]


def test_a_document_is_drawn_anew_for_another_width():
    document = MarkdownDocument("one two three four")
    assert text_of(document.draw(pen(9))) == "one two\nthree\nfour"
    assert text_of(document.draw(pen())) == "one two three four"


def test_blocks_stand_one_empty_line_apart():
    source = "# A\n\n\n\nb\n- c\n- d\n\n---\n| e |\n|---|\n| f |\n\ng"
    assert "\n\n\n" not in text_of(line for line in MarkdownDocument(source).draw(pen()))


def test_a_link_shows_its_address_without_an_escape_sequence():
    (line,) = MarkdownDocument("go [there](http://x.example) now").draw(pen(80))
    assert text_of([line]) == "go there (http://x.example) now"
    assert not any(segment.style and segment.style.link for segment in line)
    linked = [segment.text for segment in line if segment.style and segment.style.meta.get(ADDRESS)]
    assert "".join(linked) == "there (http://x.example)"


@pytest.mark.parametrize(
    "source",
    [
        "![picture](http://127.0.0.1:9/a.png)",
        "<img src='http://127.0.0.1:9/a.png'>",
        "[there](http://127.0.0.1:9/) and http://127.0.0.1:9/",
        "[a]: http://127.0.0.1:9/\n\n[a] ![a]",
        "```http://127.0.0.1:9/\nx\n```",
    ],
)
def test_no_address_in_a_document_is_asked(source, monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "socket", lambda *_, **__: asked.append("socket"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: asked.append("name"))
    assert text_of(MarkdownDocument(source).draw(pen(80)))
    assert asked == []


@pytest.mark.parametrize("source", [*REFERENCES, *HOSTILE])
def test_what_is_drawn_is_letters(source):
    draw = text_of(MarkdownDocument(source.encode("utf-8", "ignore").decode()).draw(pen(80)))
    assert not sequences(draw)
    assert not controls_in(draw)


def shown(source: str, width: int = 40) -> list[str]:
    return text_of(MarkdownDocument(source).draw(pen(width))).split("\n")


@pytest.mark.parametrize("source", ["---", "***", "_ _ _", "text\n\n---\n\nmore", "- a\n\n  ---\n"])
def test_a_rule_is_a_line(source):
    lines = shown(source)
    assert any(line.endswith("─" * 37) for line in lines)
    assert not any("--" in line for line in lines)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("- [ ] open\n- [x] done\n- [X] **so**", [" ☐ open", " ☑ done", " ☑ so"]),
        ("* [ ] a\n  * [x] b", [" ☐ a", "    ☑ b"]),
        ("1. [x] first\n2. plain", [" 1 ☑ first", " 2 plain"]),
        ("- [ ]\tafter a tab", [" ☐ after a tab"]),
        ("- [] none\n- [y] none\n- a [ ] b\n- [ ]x", [" • [] none", " • [y] none", " • a [ ] b", " • [ ]x"]),
        ("[ ] no list", ["[ ] no list"]),
        ("- `[ ] code`", [" • [ ] code"]),
    ],
)
def test_tasks_are_boxes_in_place_of_their_bullets(source, expected):
    assert shown(source) == expected


SENTENCE = "Press the key in the app, see *notes.md*, `a.py` and **bold** words, then go on: it is (really) done."


@pytest.mark.parametrize("before", ["", "- ", "> ", "# ", "1. ", "- [ ] "])
def test_no_word_that_fits_is_broken(before):
    words = set(SENTENCE.replace("*", "").replace("`", "").split())
    for width in range(14, 60):
        shown_words = " ".join(shown(before + SENTENCE, width)).split()
        assert {word for word in shown_words if word not in ("•", "▌", "1", "☐")} == words


def test_a_table_shows_words_that_are_too_long_for_their_column():
    lines = shown("| name | where |\n|---|---|\n| supercalifragilistic | /usr/local/share/applications |", 24)
    cells = [line.split() for line in lines if "─" not in line]
    assert not any("…" in line for line in lines)
    joined = "".join("".join(row) for row in cells)
    assert {*"supercalifragilistic"} <= {*joined}
    assert sorted(joined) == sorted("namewheresupercalifragilistic/usr/local/share/applications")


def test_prose_is_a_hundred_cells_wide_and_code_and_tables_as_wide_as_there_is():
    words, row = "word " * 60, "x = " + "1" * 150
    lines = shown(f"{words}\n\n- {words}\n\n> {words}\n\n# {words}\n", 180)
    assert max(map(len, lines)) <= 100
    assert any(row in line for line in shown(f"```\n{row}\n```\n", 180))
    assert max(map(len, shown(f"| a |\n|---|\n| {words} |\n", 180))) > 150


def test_headings_begin_where_the_text_does():
    assert shown("# One\n\n## Two\n\ntext") == ["One", "", "Two", "", "text"]


@pytest.mark.parametrize("before", ["", "- ", "> "])
def test_the_head_of_a_code_block_has_the_language_and_what_copies_it(before):
    others = {"- ": "  "}.get(before, before)
    head = next(line for line in shown(f"{before}```python\n{others}x = 1\n{others}```", 40) if "python" in line)
    assert head.endswith("c copy")
    assert not any("copy" in line for line in shown(f"{before}```python\n", 40))
    assert not any("copy" in line for line in shown("```python\nx\n```", 6))
