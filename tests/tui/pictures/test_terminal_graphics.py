"""What a terminal says about pictures, among the keys that it sends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.events import Key

from tui.pictures.terminal_graphics import BLOCKS, GraphicsQuery, TerminalGraphics
from tui.terminal_driver import InputParser

NAME = "\x1bP>|{}\x1b\\"
KITTY, CELL = "\x1b_Gi=31;OK\x1b\\", "\x1b[6;18;9t"
PLAIN, SIXELS = "\x1b[?62;22c", "\x1b[?62;4;22c"


def keys_of(parser: InputParser, pieces: Sequence[str]) -> str:
    events = [event for piece in pieces for event in parser.feed(piece)]
    return "".join(event.character or "" for event in events if isinstance(event, Key))


async def answer_to(*pieces: str, cell: tuple[int, int] | None = None) -> tuple[TerminalGraphics, str]:
    """Return how a terminal that answers with these pieces shows pictures, and the keys among them."""
    query, asked = GraphicsQuery(), []
    waiting = asyncio.create_task(query.ask(asked.append, cell))
    await asyncio.sleep(0)
    keys = keys_of(InputParser(query), pieces)
    assert len(asked) == 1
    return await waiting, keys


@pytest.mark.parametrize(
    ("replies", "graphics"),
    [
        (CELL + SIXELS, TerminalGraphics("blocks", 9, 18)),
        (NAME.format("kitty(0.35.2)") + KITTY + CELL + PLAIN, TerminalGraphics("kitty", 9, 18)),
        (NAME.format("ghostty 1.2.0") + KITTY + PLAIN, TerminalGraphics("kitty", 10, 20)),
        (NAME.format("kitty(0.26.5)") + KITTY + CELL + PLAIN, TerminalGraphics("blocks", 9, 18)),
        (NAME.format("Konsole 22.12.3") + KITTY + CELL + SIXELS, TerminalGraphics("blocks", 9, 18)),
        (NAME.format("tmux 3.3a") + PLAIN, BLOCKS),
        ("\x1b[?6c", BLOCKS),
        ("\x1b[6;0;0t" + SIXELS, BLOCKS),
    ],
)
async def test_the_replies_decide_how_pictures_are_shown(replies: str, graphics: TerminalGraphics) -> None:
    assert await answer_to(replies) == (graphics, "")


async def test_a_cell_size_of_the_system_precedes_that_of_the_terminal() -> None:
    assert (await answer_to(CELL + SIXELS, cell=(6, 13)))[0] == TerminalGraphics("blocks", 6, 13)


async def test_keys_between_the_replies_stay_keys() -> None:
    assert await answer_to("a", NAME.format("xterm(379)") + "b", "c" + CELL, SIXELS + "d") == (
        TerminalGraphics("blocks", 9, 18),
        "abcd",
    )


@given(st.lists(st.integers(0, 60), max_size=6), st.sampled_from([SIXELS, PLAIN]))
def test_replies_in_any_pieces_are_no_keys(cuts: list[int], last: str) -> None:
    text = NAME.format("kitty(0.35.2)") + KITTY + CELL + last
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(bounds)]
    graphics, keys = asyncio.run(answer_to(*pieces))
    assert keys == ""
    assert graphics.protocol == "kitty"


async def test_escape_is_a_key_after_a_moment_and_at_once_when_nothing_is_asked(monkeypatch) -> None:
    query = GraphicsQuery()
    assert query.filtered("\x1b") == "\x1b"
    waiting = asyncio.create_task(query.ask(lambda _: None, None))
    await asyncio.sleep(0)
    assert query.filtered("x\x1b") == "x"
    assert query.overdue() == ""
    later_s = time.monotonic() + 1.0
    monkeypatch.setattr("tui.pictures.terminal_graphics.time.monotonic", lambda: later_s)
    assert query.overdue() == "\x1b"
    assert query.filtered(PLAIN) == ""
    assert await waiting == BLOCKS


async def test_a_silent_terminal_gets_half_blocks_and_a_late_reply_counts_for_the_next_picture(monkeypatch) -> None:
    monkeypatch.setattr("tui.pictures.terminal_graphics._PATIENCE_S", 0.0)
    query, asked = GraphicsQuery(), []
    assert await query.ask(asked.append, None) == BLOCKS
    assert query.filtered(CELL + SIXELS) == ""
    await asyncio.sleep(0.01)
    monkeypatch.undo()
    assert await query.ask(asked.append, None) == TerminalGraphics("blocks", 9, 18)
    assert len(asked) == 1
