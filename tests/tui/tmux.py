"""A tmux terminal with a shell: sends keys, and reads the rows of its screen."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.patience import PATIENCE_S

__all__ = ["PATIENCE_S", "Tmux"]

_LOOK_EVERY_S = 0.05
_MARK = "LOCALLLM_DATA_DIR"  # in the environment of all that is started here, a service that was left behind too


class Tmux:
    """One window of 100×30 cells; made by `shell`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # without what a test runner says there of its own terminal's size
        self._environment = {name: environment[name] for name in environment if name not in ("COLUMNS", "LINES")}
        self._command = ["tmux", "-u", "-f", os.devnull, "-L", f"localllm-{uuid.uuid4().hex}"]

    @classmethod
    @contextmanager
    def shell(cls, environment: Mapping[str, str], folder: Path) -> Iterator[Tmux]:
        """Give a terminal whose shell sits in `folder`; at the end stop all that was started in it.

        `environment` names a LOCALLLM_DATA_DIR that nobody else uses.
        """
        terminal = cls(environment)
        terminal._tmux("new-session", "-d", "-x", "100", "-y", "30", "-c", str(folder), "sh")
        try:
            yield terminal
        finally:
            started = terminal.processes()
            terminal._tmux("kill-server")
            for process in psutil.wait_procs(started, timeout=PATIENCE_S / 6)[1]:
                process.kill()

    @property
    def screen(self) -> str:
        """Everything on the screen, row by row."""
        return self._tmux("capture-pane", "-p")

    def types(self, text: str) -> None:
        self._tmux("send-keys", "-l", "--", text)

    def presses(self, *keys: str) -> None:
        """Press keys by tmux's names, such as Enter, C-q or F5."""
        for key in keys:
            self._tmux("send-keys", key)

    def asks(self, question: str) -> None:
        self.types(question)
        self.presses("Enter")

    def sees(self, *texts: str) -> None:
        for text in texts:
            self.until(lambda text=text: text in self.screen, f"{text!r} was never on the screen")

    def no_longer_sees(self, text: str) -> None:
        self.until(lambda: text not in self.screen, f"{text!r} stayed on the screen")

    def until(self, predicate: Callable[[], bool], complaint: str) -> None:
        """Wait until `predicate` holds; else fail with the complaint and what is on the screen."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not predicate():
            assert time.monotonic() < deadline_s, f"{complaint}:\n{self.screen}"
            time.sleep(_LOOK_EVERY_S)

    def processes(self, words: str = "") -> list[psutil.Process]:
        """Return what runs here, the shell and tmux itself included, where the command line holds `words`."""
        mark = self._environment[_MARK]
        return [
            process
            for process in psutil.process_iter(["environ", "cmdline"])
            if (process.info["environ"] or {}).get(_MARK) == mark and words in " ".join(process.info["cmdline"] or ())
        ]

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            env=dict(self._environment),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
