"""The app quits when its terminal disappears, without spinning, and stops its service; a paste is only text."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from contextlib import contextmanager

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.events import Key, Paste

from tests.patience import PATIENCE_S

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)

from tests.tui.pseudo_terminal import PseudoTerminal
from tui.terminal_driver import InputParser


@pytest.fixture
def environment(tmp_path):
    """A disk of its own, and an engine that says what it hears."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCALLLM_")}
    folders = {name: str(tmp_path / name.lower()) for name in ("DATA_DIR", "CACHE_DIR", "CONFIG")}
    settings = {**folders, "ENGINE": "fake", "PORT": "0"}
    return {**kept, **{f"LOCALLLM_{name}": value for name, value in settings.items()}}


def all_leave(terminal):
    """Close the terminal; return whether the app ended by itself, in good order, and all that it had started."""
    started = psutil.Process(terminal.process.pid).children(recursive=True)
    terminal.vanish()
    assert terminal.process.wait(PATIENCE_S) == 0
    return not psutil.wait_procs(started, PATIENCE_S)[1]


@pytest.mark.slow
@pytest.mark.parametrize("is_told", [True, False], ids=["told by a signal", "not told"])
def test_the_app_leaves_with_its_service_when_the_terminal_vanishes(environment, tmp_path, is_told):
    with PseudoTerminal.app(environment, tmp_path, is_told_of_its_end=is_told) as terminal:
        terminal.sees("Recommended here")
        terminal.types("\x1b")
        terminal.sees("● ready")
        assert all_leave(terminal)


@pytest.mark.slow
def test_the_app_is_drawn_on_the_terminal_wherever_errors_go(environment, tmp_path):
    with (
        (tmp_path / "errors").open("wb") as errors,
        PseudoTerminal.app(environment, tmp_path, stderr=errors.fileno()) as terminal,
    ):
        terminal.sees("Recommended here")
        assert (tmp_path / "errors").read_bytes() == b""


@pytest.mark.slow
def test_the_app_ends_though_a_vanishing_terminal_tells_it_to_continue(environment, tmp_path):
    with PseudoTerminal.app(environment, tmp_path) as terminal:
        terminal.sees("Recommended here")
        terminal.process.send_signal(signal.SIGCONT)
        assert all_leave(terminal)


START, END = "\x1b[200~", "\x1b[201~"


def parsed(*pieces):
    parser = InputParser()
    return [
        event.text if isinstance(event, Paste) else [event.key]
        for piece in pieces
        for event in parser.feed(piece)
        if isinstance(event, Key | Paste)
    ]


@given(
    st.lists(st.sampled_from(["a", "\x1b", "[31m", "\r", "\x1b[A", "\x11", START])).map("".join),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_no_part_of_a_paste_is_a_key_however_it_arrives(pasted, first, second):
    sent = f"x{START}{pasted}{END}y"
    cuts = sorted((min(first, len(sent)), min(second, len(sent))))
    pieces = [sent[: cuts[0]], sent[cuts[0] : cuts[1]], sent[cuts[1] :]]
    assert parsed(*pieces) == [["x"], pasted, ["y"]]


def test_the_mark_of_an_end_in_a_paste_does_not_end_it():
    assert parsed(f"{START}ls{END}rm -r\r{END}", "\r") == [f"ls{END}rm -r\r", ["enter"]]
    assert parsed(f"{START}one{END}y{START}two{END}") == ["one", ["y"], "two"]


@pytest.mark.slow
def test_a_paste_with_an_escape_character_is_text_and_sends_nothing(environment, tmp_path):
    with PseudoTerminal.app({**environment, "LOCALLLM_KEEP_ALIVE": "60"}, tmp_path) as terminal:
        terminal.sees("Recommended here")
        terminal.types("\x1b")
        terminal.sees("● ready")
        n_before = len(terminal.written)
        terminal.types(f"{START}a \x1b[31mred\x1b word\r\x11and \x1bOP its end{END}")
        terminal.sees("a red word", "its end", since=n_before)
        terminal.types("!")
        terminal.sees("!", since=n_before)
        assert terminal.process.poll() is None  # Ctrl+Q was in the paste
        assert "Keys and commands" not in terminal.written
        assert "tokens a second" not in terminal.written


_EDITOR = """
import pathlib, sys
path = pathlib.Path(sys.argv[1])
print("An editor has the terminal.", flush=True)
word = input()
path.write_text(path.read_text().strip() + " and " + word)
"""


@contextmanager
def editor_at_work(environment, folder):
    """Open the user's editor with a draft."""
    (folder / "editor.py").write_text(_EDITOR)
    editor = {"VISUAL": shlex.join([sys.executable, str(folder / "editor.py")])}
    with PseudoTerminal.app({**environment, **editor}, folder) as terminal:
        terminal.sees("Recommended here")
        terminal.types("\x1b")
        terminal.sees("● ready")
        terminal.types("salt\x1be")
        terminal.sees("An editor has the terminal.")
        yield terminal


@pytest.mark.slow
def test_ctrl_c_stops_the_editor_and_not_the_app(environment, tmp_path):
    with editor_at_work(environment, tmp_path) as terminal:
        n_before = len(terminal.written)
        terminal.types("\x03")
        terminal.sees("its text is not", "salt", since=n_before)
        terminal.types(" and pepper")
        terminal.sees("pepper", since=n_before)
        assert terminal.process.poll() is None


@pytest.mark.slow
def test_the_draft_is_edited_in_the_users_editor_which_has_the_terminal_meanwhile(environment, tmp_path):
    with editor_at_work(environment, tmp_path) as terminal:
        n_before = len(terminal.written)
        terminal.types("pepper\n")
        terminal.sees("salt and pepper", "● ready", since=n_before)
        terminal.types("\r")
        terminal.sees("tokens a second", since=n_before)
