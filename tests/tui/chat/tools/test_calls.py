"""Lines of a diff and other texts: their kinds, folded to the width, safe for a terminal."""

from __future__ import annotations

from textual.app import App, ComposeResult

from app.tools.display import StyledLine, diff_lines, plain_lines
from tests.tui.screen_text import screen_text
from tui.chat.tools.calls import StyledLines

DIFF = "--- a/notes.md\n+++ b/notes.md\n@@ -1,3 +1,3 @@\n one\n-two\n+zwei\n--- three"


def test_each_line_of_a_diff_has_its_kind():
    kinds = [(line.text[:5], line.kind) for line in diff_lines(DIFF)]
    assert kinds == [
        ("--- a", "heading"),
        ("+++ b", "heading"),
        ("@@ -1", "place"),
        (" one", "plain"),
        ("-two", "removed"),
        ("+zwei", "added"),
        ("--- t", "removed"),  # a removed "-- three", not the name of a file
    ]


def test_a_text_without_a_place_of_a_diff_is_plain():
    assert {line.kind for line in diff_lines("- a list\n+ another\n---")} == {"plain"}


def test_control_characters_and_tabs_never_reach_a_line():
    assert plain_lines("a\x1b[2Jb\tc\r\n\u202ed") == (StyledLine("a[2Jb   c"), StyledLine("d"))


class Shown(App[None]):
    def __init__(self, lines: tuple[StyledLine, ...]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        yield StyledLines(self._lines)


async def test_a_line_wider_than_the_screen_goes_on_in_the_next_row():
    async with Shown(plain_lines("0123456789abcde\n[b]漢字漢字漢字[/b]")).run_test(size=(10, 8)) as pilot:
        rows = screen_text(pilot.app).splitlines()
        assert rows[:5] == ["0123456789", "abcde", "[b]漢字漢", "字漢字[/b]", ""]
        pilot.app.query_one(StyledLines).show(plain_lines("new"))
        await pilot.pause()
        assert screen_text(pilot.app).split() == ["new"]


async def test_what_is_removed_and_added_has_its_own_colours():
    async with Shown(diff_lines(DIFF)).run_test(size=(40, 10)) as pilot:
        strips = pilot.app.screen._compositor.render_strips()
        colours = {segment.text.strip(): segment.style.color for strip in strips for segment in strip if segment.style}
        assert len({colours["-two"], colours["+zwei"], colours["one"]}) == 3


async def test_a_very_long_text_is_drawn_where_it_is_seen_only():
    lines = plain_lines("x" * 2_000_000)
    async with Shown(lines).run_test(size=(80, 24)) as pilot:
        assert screen_text(pilot.app).splitlines()[0].startswith("x" * 70)
        assert pilot.app.query_one(StyledLines).size.height > 25_000
