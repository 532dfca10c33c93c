"""The full screen in terminals of other encodings, the chat in the scrollback where there can be none."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

from tests.patience import PATIENCE_S

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)

from tests.quantizer.gguf_files import tiny_llama
from tests.tui.far_engine import FarEngine
from tests.tui.pseudo_terminal import PseudoTerminal
from tests.tui.typist import PROMPT, Typist
from tui.screen_check import column_in

ASKS_CURSOR = "\x1b[6n"
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"


@pytest.fixture
def environment(tmp_path):
    """A disk of its own, the fake engine, and a locale without UTF-8."""
    model = tiny_llama(tmp_path / "tiny.gguf", lambda writer: writer.add_chat_template(TEMPLATE))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOCALLLM_", "TERM"))}
    folders = {name: str(tmp_path / name.lower()) for name in ("DATA_DIR", "CACHE_DIR", "CONFIG")}
    settings = {**folders, "ENGINE": "fake", "PORT": "0", "MODEL": str(model)}
    return {**kept, **{f"LOCALLLM_{name}": value for name, value in settings.items()}}


@pytest.fixture
def in_latin_1(environment):
    return {**environment, "PYTHONIOENCODING": "latin-1"}


def ends(terminal):
    """Close the terminal; return whether the process ended, and all that it had started."""
    started = psutil.Process(terminal.process.pid).children(recursive=True)
    terminal.vanish()
    terminal.process.wait(PATIENCE_S)
    return not psutil.wait_procs(started, PATIENCE_S)[1]


def answers(terminal, column):
    terminal.until(lambda: ASKS_CURSOR in terminal.written, "the terminal was never asked")
    terminal.types(f"\x1b[1;{column}R")


@pytest.fixture
def far():
    with FarEngine.serving() as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize("is_told", [True, False], ids=["told by a signal", "not told"])
def test_a_locale_without_utf_8_gets_the_screen_on_a_terminal_that_shows_it_and_ends_with_it(
    in_latin_1, tmp_path, is_told
):
    with PseudoTerminal.app(in_latin_1, tmp_path, is_told_of_its_end=is_told) as terminal:
        answers(terminal, 2)
        terminal.sees("Ask something.", "╭", "● ready")
        assert ends(terminal)


@pytest.mark.slow
@pytest.mark.parametrize("column", [3, None], ids=["two characters", "no answer"])
def test_a_terminal_that_shows_no_utf_8_gets_a_sentence_and_the_chat_in_the_scrollback(
    in_latin_1, tmp_path, far, column
):
    with PseudoTerminal.app(in_latin_1, tmp_path, "chat", "--connect", far.url) as terminal:
        if column:
            answers(terminal, column)
        terminal.sees("The encoding of the locale is iso8859-1, and the terminal")
        terminal.sees(PROMPT.strip())
        assert "\x1b[?1049h" not in terminal.written
        assert ends(terminal)


@pytest.mark.slow
def test_a_dumb_terminal_gets_the_chat_in_the_scrollback_and_its_answers(environment, far):
    with Typist({**environment, "TERM": "dumb"}, "chat", "--connect", far.url) as user:
        user.read_until("TERM is dumb")
        user.read_until(PROMPT)
        far.send("Good day.")
        far.end()
        assert "Good day." in user.sends("hello")
        assert "\x1b[?1049h" not in user.shown
        assert user.leaves() == 0


@pytest.mark.parametrize(
    ("answer", "column"),
    [(b"", None), (b"\x1b[1;", None), (b"\x1b[12;3R", 3), (b"ab\x1b[1;2Rcd", 2), (b"\x1b[R", None)],
)
def test_the_column_is_read_among_other_input(answer, column):
    assert column_in(answer) == column
