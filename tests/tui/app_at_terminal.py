"""The real app in a terminal: sends keys, and reads the screen.

Owns the app's processes and their folder. Tests check the results.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from quantizer.system.process import python_command
from tests.patience import PATIENCE_S
from tests.tui.terminal import Terminal, eventually

__all__ = ["AppAtTerminal", "Glance", "letters_of"]

_MODULES = {"worker": "app.engine.worker", "service": "app.cli.main"}
_KEYS = {
    "esc": "\x1b",
    "enter": "\r",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "home": "\x1b[H",
    "ctrl+n": "\x0e",
    "ctrl+q": "\x11",
    "ctrl+r": "\x12",
    **{f"f{number}": f"\x1b[{code}~" for number, code in zip(range(5, 11), (15, 17, 18, 19, 20, 21), strict=True)},
}
_ESC_SEEN_S = 3.0
_AFTER_ESC_S = 0.15  # else it and the next key are one: Alt and that key
_LOOKS_EVERY_S = 0.02
_STATUS = re.compile(r"^ *localllm · Chat .*[◌●○✕◐!] ([a-z ]+)")  # in the header
_QUESTION = re.compile(r"^ [ ┃]▌ (.*)$", re.MULTILINE)  # a bar stands before one that was searched for
_JOB = re.compile(r"^ +\S+ → \S+(?: {2}|$)", re.MULTILINE)
_GREETING = "ask one of these"
_KEY_HINT = re.compile(r" {4}F\d+ ")  # of the greeting, of which a part may be drawn
_N_LETTERS = 16


@dataclass(frozen=True, slots=True)
class Glance:
    """What was on the screen at a time (of `time.perf_counter`): everything, what the status line says ("" away from
    the chat), the numbers of the questions in the chat, the last row of letters that belongs to an answer, and how many
    jobs are listed."""

    at_s: float
    screen: str
    status: str
    asked: frozenset[int]
    answers: str
    n_jobs: int

    @classmethod
    def of(cls, at_s: float, screen: str) -> Glance:
        rows = screen.split("\n")
        status = next((match[1].strip() for row in rows if (match := _STATUS.match(row))), "")
        asked = frozenset(int(number) for row in _QUESTION.findall(screen) for number in re.findall(r"\bn(\d+)\b", row))
        return cls(at_s, screen, status, asked, _said(rows) if status else "", len(_JOB.findall(screen)))


class AppAtTerminal:
    """The app with `folder` to itself. Questions are numbered, `n17`, to be found again. `glances` are those
    since somebody emptied them."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.data_dir = folder / "data"
        self.glances: list[Glance] = []
        self._folder = folder
        self._settings = {"LOCALLLM_CONFIG": str(folder / "config.toml"), "LOCALLLM_SIDEBAR": "off", **settings}
        self._n_asked = 1000  # no number is the beginning of another, which a search would find too
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "welcome-seen").touch()

    def start(self) -> None:
        """Start the app, and wait for its prompt."""
        self.terminal = Terminal.start(python_command("tui"), self._folder, self._settings)
        self.until(lambda glance: "Enter sends" in glance.screen, "the prompt")

    def restart(self) -> None:
        """Start the app anew once it has ended."""
        self.terminal.process.wait()
        self.terminal.close()
        self.start()

    def leave(self, choice: str = "Cancel the jobs and quit") -> None:
        """Quit by key; if jobs run, with this choice."""
        self.goes_home()
        self.presses("ctrl+q")
        is_asked = False
        while self.terminal.process.poll() is None:
            if not is_asked and choice in self.look().screen:
                is_asked = True
                self.presses(*["down"] * choice.startswith("Cancel"), "enter")
            time.sleep(_LOOKS_EVERY_S)
        self.terminal.close()

    def end(self) -> None:
        """End what is left of it, however that is."""
        for process in self.processes():
            process.kill()
        self.terminal.process.wait()

    # Its processes

    def processes(self) -> list[psutil.Process]:
        """Return every process that works for this folder, whoever its parent is by now."""
        return [each for each in psutil.process_iter() if _data_dir_of(each) == str(self.data_dir)]

    def part(self, name: str) -> psutil.Process:
        """Return a part of the app, waiting for it: "app", or its "service" or "worker"."""
        app = psutil.Process(self.terminal.process.pid)
        if name == "app":
            return app
        return eventually(lambda: next(iter(self._parts(name)), None), f"the {name}")

    def has(self, name: str, other_than: psutil.Process) -> bool:
        """Whether the app has another service or worker than the one that was killed."""
        return any(each != other_than for each in self._parts(name))

    def _parts(self, name: str) -> list[psutil.Process]:
        app = psutil.Process(self.terminal.process.pid)
        return [each for each in app.children(recursive=True) if _MODULES[name] in _command(each)]

    # User actions

    def presses(self, *keys: str) -> None:
        """Press keys by their names, or type a text."""
        for key in keys:
            self.terminal.write(_KEYS.get(key, key).encode())
            if key == "esc":
                time.sleep(_AFTER_ESC_S)

    def asks(self, words: str) -> int:
        """Ask something; return its number."""
        self._n_asked += 1
        self.presses(f" n{self._n_asked} {words}", "enter")
        return self._n_asked

    def goes_home(self) -> None:
        """Go back to the chat from wherever it is."""

        deadline_s = time.perf_counter() + PATIENCE_S
        while not (glance := self.look()).status:
            if time.perf_counter() > deadline_s:
                raise SystemExit(f"the chat never came:\n{glance.screen}")
            self.presses("esc")
            before = glance.screen  # a busy app answers late: keys that wait would be too many
            self.comes_to(lambda later, before=before: bool(later.status) or later.screen != before, _ESC_SEEN_S)

    # What it sees

    def look(self) -> Glance:
        """Look at the screen, and remember it."""
        glance = Glance.of(time.perf_counter(), self.terminal.screen)
        self.glances.append(glance)
        return glance

    def watches(self, seconds: float) -> None:
        """Let time pass and look on."""
        self.comes_to(lambda _: False, seconds)

    def comes_to(self, predicate: Callable[[Glance], bool], patience_s: float) -> bool:
        """Look on until `predicate` holds of what is seen, at most for `patience_s`; return whether it does."""
        until_s = time.perf_counter() + patience_s
        while not (is_there := predicate(self.look())) and time.perf_counter() < until_s:
            time.sleep(_LOOKS_EVERY_S)
        return is_there

    def until(self, predicate: Callable[[Glance], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        """Look on until `predicate` holds of what is seen; end the program where it never does."""
        if not self.comes_to(predicate, patience_s):
            raise SystemExit(f"{what} never came:\n{self.look().screen}")


def letters_of(text: str) -> str:
    """Return the letters and digits of a text: what Markdown leaves as it was."""
    return "".join(character for character in text.casefold() if character.isalnum())


def _said(rows: list[str]) -> str:
    """The letters of the lowest row of an answer that has enough of them."""
    if any(_GREETING in row for row in rows):
        return ""
    # Whose an answer is, how it ended and its figures are none of it.
    rows = [row for row in rows if " · " not in row and "tokens a second" not in row]
    end = next((n for n, row in enumerate(rows) if row.startswith("╭")), len(rows))
    begin = max((n for n, row in enumerate(rows[:end]) if _QUESTION.match(row)), default=-1)
    answers = [row for row in reversed(rows[begin + 1 : end]) if row.startswith("    ") and not _KEY_HINT.match(row)]
    return next((letters for letters in map(letters_of, answers) if len(letters) >= _N_LETTERS), "")


def _data_dir_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("LOCALLLM_DATA_DIR", "")
    except psutil.Error:  # gone, or another user's
        return ""


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
