"""Watches the terminal app from outside, at a terminal of 120×40, while an engine streams 100 tokens of Markdown a
second for ten seconds and a person types: what is slow is what a person would feel.

    uv run python tests/bench/screen/tui_streaming.py
    uv run python tests/bench/screen/tui_streaming.py --code-lines 3000 # one code block at 400 tokens a second instead

The engine is a small server over HTTP in this process, so that the app's work on its events counts. Printed are: first
paint, from the start of the process until the prompt is on the terminal (median of five); from a key to its character
on the terminal (median, p95, worst of the keys pressed as long as it came); the longest time without anything new on
the terminal while the answer came; how late a clock in the app's event loop was at worst; and the app's CPU in that
time. Ends with 1 if a limit is passed. Needs a POSIX terminal.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import psutil

from tests.bench.screen.paced_engine import PacedEngine
from tests.tui.terminal import Terminal, eventually

LIMITS = {"first paint, s": 0.8, "key to echo p95, ms": 50.0, "longest gap, ms": 200.0, "CPU of a core, %": 30.0}
_KEYS = [chr(0x410 + n) for n in range(64)]  # Cyrillic: none is in the answer, each is new on the terminal
_KEY_EVERY_S = 0.14
_CLEAR = b"\x15"  # Ctrl+U
_CODE_TOKENS_PER_S = 400.0
_PROMPT = "sk something"  # without the letter below the cursor
_LOOP_TICK_S = 0.005


def first_paint_s(url: str, folder: Path) -> float:
    """Return how long the app took from its start until its prompt was there."""
    command = [sys.executable, "-m", "tui", "--connect", url, "-m", "paced"]
    with Terminal.running(command, folder) as terminal:
        painted_s = terminal.when(_PROMPT) - terminal.begun_s
        terminal.when("ready")
    return painted_s


def stream(url: str, engine: PacedEngine, folder: Path) -> dict[str, float]:
    """Ask one question, type while it is answered, and return the figures."""
    late_file = folder / "late"
    with Terminal.running([sys.executable, __file__, "--app", url, str(late_file)], folder) as terminal:
        process = psutil.Process(terminal.process.pid)
        terminal.when("ready")
        terminal.write(b"Tell me everything.\r")
        begun_s = eventually(lambda: engine.begun_s, "the question")
        cpu_before_s = sum(process.cpu_times()[:2])
        waits_ms = [1000 * wait_s for wait_s in _echoes_s(terminal, engine)]
        cpu_s = sum(process.cpu_times()[:2]) - cpu_before_s
        ended_s = eventually(lambda: engine.ended_s, "the end of the answer")
    times_s = [begun_s, *(at_s for at_s, _ in terminal.seen if begun_s < at_s < ended_s), ended_s]
    return {
        "key to echo median, ms": statistics.median(waits_ms),
        "key to echo p95, ms": statistics.quantiles(waits_ms, n=20)[-1],
        "key to echo worst, ms": max(waits_ms),
        "longest gap, ms": 1000 * max(later - former for former, later in pairwise(times_s)),
        "event loop late at worst, ms": 1000 * float(late_file.read_text()),
        "CPU of a core, %": 100 * cpu_s / (ended_s - begun_s),
        "tokens/s": engine.n_tokens / (ended_s - begun_s),
    }


def _echoes_s(terminal: Terminal, engine: PacedEngine) -> Iterator[float]:
    """Press keys until the answer has ended, and yield how long each took."""
    for n_pressed in count():
        if engine.ended_s is not None:
            return
        if n_pressed and n_pressed % len(_KEYS) == 0:
            terminal.write(_CLEAR)
        yield _echo_s(terminal, _KEYS[n_pressed % len(_KEYS)])


def _echo_s(terminal: Terminal, key: str) -> float:
    pressed_s = terminal.write(key.encode())
    wait_s = terminal.when(key, pressed_s) - pressed_s
    time.sleep(max(0.0, _KEY_EVERY_S - wait_s))
    return wait_s


def run_app(url: str, late_file: Path) -> None:
    """Run the app as `localllm --connect` does, with a clock in its event loop."""
    from app.chat.repository import SqliteChatRepository
    from app.connection import ServiceConnection, local_service
    from app.settings.settings import load_settings
    from tui.app import LocalllmApp

    class Clocked(LocalllmApp):
        worst_s = 0.0

        def on_ready(self) -> None:
            self.run_worker(self.tick(), group="clock")

        async def tick(self) -> None:
            while True:
                due_s = time.perf_counter() + _LOOP_TICK_S
                await asyncio.sleep(_LOOP_TICK_S)
                self.worst_s = max(self.worst_s, time.perf_counter() - due_s)

    async def run() -> float:
        settings = load_settings({"connect": url, "model": "paced"})
        async with (
            SqliteChatRepository(settings.data_dir) as repository,
            ServiceConnection(local_service(settings), "paced") as connection,
        ):
            app = Clocked(connection, repository, settings=settings)
            await app.run_async()
            return app.worst_s

    late_file.write_text(str(asyncio.run(run())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--app", nargs=2, metavar=("URL", "FILE"), help="run the app that is watched (used by itself)")
    parser.add_argument("--code-lines", type=int, metavar="N", help="stream a code block of N lines instead")
    options = parser.parse_args()
    if options.app:
        run_app(options.app[0], Path(options.app[1]))
        return
    answer = PacedEngine.of_code(options.code_lines, _CODE_TOKENS_PER_S) if options.code_lines else PacedEngine()
    with tempfile.TemporaryDirectory() as folder, answer.serving() as engine:
        paints_s = [first_paint_s(engine.url, Path(folder)) for _ in range(5)]
        figures = {"first paint, s": statistics.median(paints_s), **stream(engine.url, engine, Path(folder))}
    for name, value in figures.items():
        limit = LIMITS.get(name)
        print(f"{name:<30} {value:8.2f}" + (f"  (limit {limit:g})" if limit else ""))
    sys.exit(any(figures[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    main()
