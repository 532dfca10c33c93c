"""A repair in tmux: a model reads, edits and tests with the person's approval, and every step is taken back."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if shutil.which("tmux") is None:
    pytest.skip("The story is lived in a terminal of tmux's, and tmux is not installed.", allow_module_level=True)

from quantizer.system.process import python_command
from tests.tui.calling_engine import Turn, calling_engine
from tests.tui.tmux import PATIENCE_S, Tmux

pytestmark = pytest.mark.slow

BROKEN = (
    "def total(numbers):\n    result = 0\n    for number in numbers:\n        result -= number\n    return result\n"
)
REPAIRED = BROKEN.replace("-=", "+=")
TEST = "from total import total\n\nassert total([1, 2, 3]) == 6\nprint('all right')\n"
NOTE = "The sign was wrong.\n"
TURNS: tuple[Turn, ...] = (
    ("read_file", {"path": "total.py"}),
    ("run_command", {"argv": [sys.executable, "check.py"]}),
    ("edit_file", {"path": "total.py", "old_text": "result -= number", "new_text": "result += number"}),
    ("write_file", {"path": "NOTES.md", "content": NOTE}),
    ("run_command", {"argv": [sys.executable, "check.py"]}),
    "The sum was subtracted; now the check passes.",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A program with a fault, and a check that finds it."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "total.py").write_text(BROKEN)
    (folder / "check.py").write_text(TEST)
    return folder


def environment_of(home: Path) -> dict[str, str]:
    theirs = ("LOCALLLM_", "HF_", "XDG_", "TMUX", "NO_COLOR")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    folders = {"DATA_DIR": "data", "CACHE_DIR": "cache", "CONFIG": "config.toml"}
    own = {f"LOCALLLM_{name}": str(home / folder) for name, folder in folders.items()}
    return environment | own | {"HOME": str(home), "TERM": "xterm-256color", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def terminal(tmp_path, project):
    with calling_engine(TURNS) as url, Tmux.shell(environment_of(tmp_path), project) as terminal:
        terminal.url = url
        yield terminal


def starts(terminal, *options):
    terminal.asks(shlex.join([*python_command("tui"), *options, "--connect", terminal.url]))


def approves(terminal, question, key):
    """Look at a question, go to it, and answer once its keys count."""
    terminal.sees(f"Allow {question}")
    assert "Tab, then a key decides" in terminal.screen
    terminal.presses("Tab")
    terminal.sees("┏")
    terminal.presses(key)
    terminal.no_longer_sees(f"Allow {question}")


def has(path, content):
    return path.exists() and path.read_text() == content


def takes_back(terminal, text):
    terminal.asks("/undo")
    terminal.sees(text)


def test_a_model_repairs_a_program_with_approval_and_each_step_is_taken_back(terminal, project):
    program, notes = project / "total.py", project / "NOTES.md"
    starts(terminal)
    terminal.sees("scripted  ● ready")
    terminal.asks("/tools on files commands")
    terminal.sees("They have no folder yet")
    terminal.asks("/tools folder .")
    terminal.sees("Tools read and write in:")
    terminal.asks("Repair total.py.")
    terminal.sees("✓ read total.py")  # which asks nobody
    terminal.types("yes, ")  # is for the prompt, whatever waits
    approves(terminal, "run", "t")
    terminal.sees("exit status 1")
    assert has(program, BROKEN)
    approves(terminal, "edit total.py", "y")
    approves(terminal, "write NOTES.md", "y")
    terminal.sees("now the check passes", "exit status 0")  # the same command needs no second question
    assert "yes, " in terminal.screen
    assert has(program, REPAIRED)
    assert has(notes, NOTE)
    terminal.sees("scripted  ● ready")

    terminal.presses("C-u")
    takes_back(terminal, "Took back: run ")
    assert has(program, REPAIRED)
    takes_back(terminal, "Took back: write NOTES.md.")
    terminal.until(lambda: not notes.exists(), "the new file stays")
    takes_back(terminal, "Took back: edit total.py.")
    terminal.until(lambda: has(program, BROKEN), "the program is not as before")
    terminal.asks("/redo")
    terminal.sees("It is done again.")
    terminal.until(lambda: has(program, REPAIRED), "the program is not repaired again")
    takes_back(terminal, "Took back: edit total.py.")
    terminal.until(lambda: has(program, BROKEN), "the program is not as before")
    terminal.presses("C-q")
    terminal.until(lambda: not terminal.processes("-m tui"), "the app stays")


def test_a_command_line_asks_at_the_terminal_and_prints_the_answer(terminal, project):
    options = ["run", "scripted", "Repair total.py.", "--tools", "files,commands", "--folder", "."]
    starts(terminal, *options, "--allow-command", shlex.join([sys.executable, "check.py"]))
    terminal.sees("Allow edit total.py", "-        result -= number", "[y] allow once")
    terminal.asks("y")
    terminal.until(lambda: "[y] allow once" in terminal.screen.partition("Allow write NOTES.md")[2], "nothing is asked")
    terminal.asks("n")
    terminal.sees("write NOTES.md · denied", "now the check passes.")
    assert has(project / "total.py", REPAIRED)
    assert not (project / "NOTES.md").exists()


def test_without_a_terminal_nothing_is_allowed_that_no_option_names(tmp_path, project):
    options = ["run", "scripted", "Repair total.py.", "--tools", "files,commands", "--folder", ".", "--json"]
    with calling_engine(TURNS) as url:
        ran = subprocess.run(
            [*python_command("tui"), *options, "--allow", "files", "--connect", url],
            env=environment_of(tmp_path),
            cwd=project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,  # so that it has no terminal at all
            timeout=PATIENCE_S,
        )
    assert ran.returncode == 0, ran.stderr
    assert "Denied, nobody can be asked: run " in ran.stderr
    assert "--allow-command" in ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["text"] == "The sum was subtracted; now the check passes."
    outcomes = [call["outcome"] for call in answer["calls"]]
    assert outcomes == ["done", "denied", "done", "done", "denied"]
    assert has(project / "total.py", REPAIRED)
    assert has(project / "NOTES.md", NOTE)
