"""A program in a pseudo-terminal: sends keys, and records output with its time."""

from __future__ import annotations

import codecs
import os
import subprocess
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from tests.patience import PATIENCE_S
from tests.tui.at_terminal import start_at_terminal
from tests.tui.vt_screen import VtScreen

__all__ = ["Terminal", "eventually"]

Found = TypeVar("Found")

N_ROWS, N_COLUMNS = 40, 120
_LOOKS_EVERY_S = 0.001
_CTRL_Q = b"\x11"


@dataclass
class Terminal:
    """`seen` is what the program wrote, each piece with the time at which it came; times are of `time.perf_counter`."""

    process: subprocess.Popen[bytes]
    master: int
    begun_s: float
    seen: list[tuple[float, str]] = field(default_factory=list)
    _shown: VtScreen = field(default_factory=lambda: VtScreen(N_COLUMNS, N_ROWS))
    _n_shown: int = 0

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)

    @classmethod
    def start(cls, command: list[str], folder: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Terminal:
        """Start `command`, which keeps its things in `folder`; `settings` are more variables of its environment."""
        places = {"LOCALLLM_DATA_DIR": str(folder / "data"), "LOCALLLM_CACHE_DIR": str(folder / "cache")}
        environment = {**os.environ, **places, "TERM": "xterm-256color", "COLORTERM": "truecolor", **settings}
        begun_s = time.perf_counter()
        process, master = start_at_terminal(command, environment, (N_COLUMNS, N_ROWS))
        terminal = cls(process, master, begun_s)
        terminal._reader.start()
        return terminal

    @classmethod
    @contextmanager
    def running(cls, command: list[str], folder: Path) -> Iterator[Terminal]:
        """Start `command`, and at the end press Ctrl+Q and wait until it has left."""
        terminal = cls.start(command, folder)
        try:
            yield terminal
            terminal.write(_CTRL_Q)
            terminal.process.wait(PATIENCE_S)
        finally:
            terminal.process.kill()
            terminal.process.wait()
            terminal.close()

    def close(self) -> None:
        """Let go of the terminal of a program that has ended."""
        self._reader.join()
        os.close(self.master)

    def write(self, data: bytes) -> float:
        """Press keys; return when."""
        now_s = time.perf_counter()
        os.write(self.master, data)
        return now_s

    def when(self, text: str, after_s: float = 0.0) -> float:
        """Return when `text` was on the terminal first since `after_s`, waiting for it."""
        n_before = bisect_left(self.seen, after_s, key=itemgetter(0))
        return eventually(
            lambda: next((at_s for at_s, text_seen in self.seen[n_before:] if text in text_seen), None), text
        )

    @property
    def screen(self) -> str:
        """What stands on the terminal now, row by row."""
        for _, text_seen in self.seen[self._n_shown :]:
            self._shown.feed(text_seen)
            self._n_shown += 1
        return self._shown.text

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a letter may come in two pieces
        while True:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # the program has ended
                return
            self.seen.append((time.perf_counter(), decoder.decode(data)))


def eventually(look: Callable[[], Found | None], what: str, patience_s: float = PATIENCE_S) -> Found:
    """Return what `look` finds as soon as that is not None. Ends the program where it never is."""
    deadline_s = time.perf_counter() + patience_s
    while (found := look()) is None:
        if time.perf_counter() > deadline_s:
            raise SystemExit(f"{what!r} never came")
        time.sleep(_LOOKS_EVERY_S)
    return found
