"""NO_COLOR: no byte of colour reaches the terminal, and what is chosen is still seen."""

from __future__ import annotations

import re
import sys

import pytest

from tests.app.client.scripted_client import ScriptedClient
from tests.tui.model_scenes import client_with_models

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)

from tests.tui.hostile import BENIGN
from tests.tui.hostile_engine import hostile_engine
from tests.tui.pseudo_terminal import PseudoTerminal
from tests.tui.test_hostile_pty import F5, F8, at_home, goes_to

_SGR = re.compile(rb"\x1b\[([0-9;:]*)m")
_COLORS = {*range(30, 50), *range(90, 108)}


def colors_written(written: bytes) -> set[bytes]:
    """Return the sequences that set a colour, also the terminal's default one."""
    found = set()
    for each in _SGR.finditer(written):
        if any(int(part or 0) in _COLORS for part in re.split(rb"[;:]", each[1])):
            found.add(each[0])
    return found


@pytest.mark.slow
def test_a_terminal_with_no_color_gets_attributes_and_no_colour(tmp_path):
    environment = at_home(tmp_path / "home", BENIGN) | {"NO_COLOR": "1"}
    with (
        hostile_engine(BENIGN) as url,
        PseudoTerminal.app(environment, tmp_path / "home" / "here", "--connect", url, size=(80, 24)) as terminal,
    ):
        terminal.sees("● ready")
        goes_to(terminal, "go\r", " token")
        goes_to(terminal, F5, "1970")
        goes_to(terminal, F8, "Jobs")
        written = terminal.written.encode()
    assert colors_written(written) == set()
    attributes = {number for each in _SGR.finditer(written) for number in each[1].split(b";")}
    assert {b"1", b"7"} <= attributes  # bold and reverse


@pytest.mark.slow
async def test_the_chosen_row_is_underlined_and_the_cursor_is_reversed_without_colours(open_app, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_app(client_with_models()) as user:
        await user.sees("ready")
        await user.types("hi")
        await user.sees("hi")
        assert "".join(reversed_texts(user.app)).strip() == ""  # the cursor, a blank
        assert reversed_texts(user.app)
        await user.presses("f6")
        await user.sees("Recommended for this machine")
        await user.until(lambda: any("guide" in text for text in underlined_texts(user.app)), "No row is chosen")
        await user.presses("slash")
        await user.types("q")
        await user.until(
            lambda: any(text.strip() in ("", "q") for text in reversed_texts(user.app)), "No cursor is seen"
        )


async def test_a_notification_stands_out_without_colours(open_app, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_app(ScriptedClient()) as user:
        await user.sees("ready")
        user.app.screen.warn("Something is wrong.")
        await user.until(
            lambda: any("! Something" in text for text in reversed_texts(user.app)), "It does not stand out"
        )


def underlined_texts(app):
    """Return the texts on the screen that are underlined."""
    strips = app.screen._compositor.render_strips()
    return [segment.text for strip in strips for segment in strip if segment.style and segment.style.underline]


def reversed_texts(app):
    """Return the texts on the screen that are drawn in reverse."""
    strips = app.screen._compositor.render_strips()
    return [segment.text for strip in strips for segment in strip if segment.style and segment.style.reverse]
