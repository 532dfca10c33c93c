"""The whole app in tmux: the installed command, its service and the guide."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time

import pytest

if shutil.which("tmux") is None:
    pytest.skip("The story is lived in a terminal of tmux's, and tmux is not installed.", allow_module_level=True)

from quantizer.system.process import python_command
from tests.tui.tmux import Tmux

pytestmark = pytest.mark.slow

QUESTION, ANSWER = "What is quantization?", "Q4_K_M is the usual balance."
FOUND = ANSWER.removesuffix("balance.").rstrip()  # as much of it as a row of hits has room for
LONG_QUESTION = "What can you do?"
OTHER_QUESTION, OTHER_ANSWER = "How do I quantize a model?", "localllm quantize SRC Q4_K_M -o model.gguf"
JOB = "guide → Q4_K_M"
_NOWHERE = "http://127.0.0.1:9"
_BREATH_S, _PAUSE_S = 0.002, 0.15  # some tokens of the guide's; more than the app takes to show them


@pytest.fixture
def terminal(tmp_path):
    """A shell in a terminal: nobody's home but this test's, and no way out to a network."""
    home = tmp_path / "home"
    home.mkdir()
    theirs = ("LOCALLLM_", "HF_", "XDG_", "TMUX", "NO_COLOR")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    environment |= {
        "HOME": str(home),
        "TERM": "xterm-256color",
        "HF_ENDPOINT": _NOWHERE,
        "LOCALLLM_CACHE_DIR": str(tmp_path / "cache"),
        "LOCALLLM_CONFIG": str(tmp_path / "config.toml"),
        "LOCALLLM_DATA_DIR": str(tmp_path / "data"),
        "LOCALLLM_PORT": "0",
        "LOCALLLM_SIDEBAR": "off",
    }
    with Tmux.shell(environment, home) as terminal:
        yield terminal


def starts(terminal):
    terminal.asks(shlex.join(python_command("tui")))


def escapes_from(terminal, mark, to=""):
    """Press Esc, and let it be taken: with a key that follows at once it would be one key with Alt.

    `to` appears where `mark` alone proves nothing: a footer is empty for a moment while its keys change.
    """
    terminal.sees(mark)
    terminal.presses("Escape")
    terminal.no_longer_sees(mark)
    terminal.sees(to)


def is_welcomed(terminal):
    terminal.sees("Recommended here", "needs no hub")
    escapes_from(terminal, "Recommended here")
    terminal.sees("guide  ● ready")


def goes_up(terminal, n_messages):
    """Select a message above, one by one: a key that comes before the mark is there would go to the prompt."""
    for _ in range(n_messages):
        before = terminal.screen
        terminal.presses("C-Up")
        terminal.until(lambda before=before: terminal.screen != before, "nothing was selected")


def talks_with_the_guide(terminal):
    terminal.asks(QUESTION)
    terminal.sees(ANSWER)
    terminal.until(lambda: re.search(r"tokens? a second", terminal.screen), "the answer never ended")


def words_below(terminal, question):
    """Return the words of an answer and how it ended, without the name of its model."""
    rows = terminal.screen.rpartition(f"▌ {question}")[2].partition("╭")[0].splitlines()
    words = " ".join(row for row in rows if "esc stop" not in row).split()  # without the line of what goes on
    return [word for word in words if word not in {"guide", "·"}]


def stops_an_answer(terminal):
    """The guide says all it has to say in a blink: it is held still, and let on for moments, until its answer shows."""
    (engine,) = terminal.processes("app.engine.worker")
    engine.suspend()
    terminal.asks(LONG_QUESTION)
    terminal.sees(f"▌ {LONG_QUESTION}")

    def has_begun():
        engine.resume()
        time.sleep(_BREATH_S)
        engine.suspend()
        time.sleep(_PAUSE_S)
        words = words_below(terminal, LONG_QUESTION)
        return len(words) > 1 and words[0] != "waiting"

    terminal.until(has_begun, "the answer never began")
    words = words_below(terminal, LONG_QUESTION)
    terminal.presses("Escape")
    terminal.sees("stopped")
    engine.resume()
    terminal.sees("guide  ● ready")
    kept = words_below(terminal, LONG_QUESTION)
    assert kept[: len(words) - 1] == words[:-1]  # the last word may have grown
    assert "stopped" in kept
    assert len(kept) > 1


def asks_it_in_other_words(terminal):
    goes_up(terminal, 2)
    terminal.presses("e")
    terminal.sees("Editing the question")
    terminal.presses("C-u")
    terminal.sees("Ask something")
    terminal.asks(OTHER_QUESTION)
    terminal.sees("‹ 2/2 ›", OTHER_ANSWER, "guide  ● ready")


def steps_through_the_versions(terminal, n_messages_below=1):
    goes_up(terminal, n_messages_below + 1)
    terminal.presses("Left")
    terminal.sees("‹ 1/2 ›", LONG_QUESTION, "stopped")
    terminal.presses("Right")
    terminal.sees("‹ 2/2 ›", OTHER_ANSWER)
    terminal.no_longer_sees(LONG_QUESTION)
    escapes_from(terminal, "┃")


def searches_the_chats(terminal):
    terminal.presses("F5")
    terminal.sees("1 chat")
    terminal.presses("/")
    terminal.sees("esc clear")
    terminal.types("zebra")
    terminal.sees("No chat matches.")
    escapes_from(terminal, "zebra", to="esc chat")
    terminal.presses("/")
    terminal.sees("esc clear")
    terminal.types("usual")
    terminal.sees(QUESTION, FOUND, "1 chat")
    escapes_from(terminal, "esc clear", to="esc chat")


def quantizes_the_guide(terminal):
    terminal.presses("F6")
    terminal.sees("▶ guide", "built in")
    terminal.presses("q")
    terminal.sees("quantizes in the background")
    terminal.sees("recommended")
    while "the usual balance" not in terminal.screen:
        before = terminal.screen
        terminal.presses("Down")
        terminal.until(lambda before=before: terminal.screen != before, "nothing was selected")
    terminal.presses("Enter")
    terminal.sees("guide:q4_K_M")
    terminal.presses("F8")
    terminal.sees(JOB, "done")


def talks_with_the_quantized_guide(terminal):
    terminal.presses("F6")
    terminal.sees("guide:q4_K_M")
    terminal.presses("Down", "Enter")
    terminal.sees("guide:q4_K_M  ● ready")
    terminal.asks("What is a GGUF file?")
    terminal.sees("GGUF is the file format of llama.cpp", "a second")


def plans(terminal):
    terminal.presses("F7")
    terminal.sees("on this machine", "On the processor", "Answers at once")


def leaves(terminal):
    terminal.presses("C-q")
    terminal.until(lambda: not terminal.processes("-m tui"), "the app stays")
    terminal.until(lambda: not terminal.processes("-m app."), "the service or a worker of its stays")


def finds_it_all_there(terminal):
    terminal.sees("guide:q4_K_M  ● ready", OTHER_ANSWER, "‹ 2/2 ›")
    assert "Recommended here" not in terminal.screen
    steps_through_the_versions(terminal, n_messages_below=3)
    searches_the_chats(terminal)
    terminal.presses("F6")
    terminal.sees("guide:q4_K_M")
    terminal.presses("F8")
    terminal.sees(JOB, "done")


def test_every_feature_works_in_a_real_terminal_and_its_data_survives_a_restart(terminal):
    starts(terminal)
    is_welcomed(terminal)
    talks_with_the_guide(terminal)
    stops_an_answer(terminal)
    asks_it_in_other_words(terminal)
    steps_through_the_versions(terminal)
    searches_the_chats(terminal)
    quantizes_the_guide(terminal)
    talks_with_the_quantized_guide(terminal)
    plans(terminal)
    leaves(terminal)
    starts(terminal)
    finds_it_all_there(terminal)
    leaves(terminal)
