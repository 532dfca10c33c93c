"""Tries to break localllm in every way that is known, and prints one table: tried, failed, and what repeats a failure.

Run: `uv run python -m tests.battery [--minutes N] [--jobs N] [--only NAME,...] [--seed N]`. Each trial is a benchmark
of its own in `tests/bench/`, run in small batches, every batch with the next seed, until it was tried as often as a
whole run wants or the minutes are over. The first seed is that of the day, so that each day tries something else; it is
printed, and so is the command that repeats a batch that failed. Exits with 1 where anything failed.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from quantizer.process import python_command
from tests.bench.report import show
from tests.bench.tally import Tally, read_tally

__all__ = ["TRIALS", "Battery", "Outcome", "Trial"]

_GUIDE = str(Path(__file__).parents[1] / "assets" / "guide" / "guide-Q8_0.gguf")
_SMALL_PULL = ("--layers", "8", "--width", "512", "--shards", "4", "--megabytes-per-s", "2")
_SEEDS_PER_DAY = 1000  # so that two days have none in common
_N_LINES = 30  # of what a failed batch printed


@dataclass(frozen=True, slots=True)
class Trial:
    """A way to break something: `count` of `module` sets how many attempts a batch makes, of `whole` in all.

    Without it a batch is always the same, and takes no seed.
    """

    name: str
    module: str
    count: str
    batch: int
    whole: int
    arguments: tuple[str, ...] = ()

    @property
    def n_batches(self) -> int:
        """How many batches a whole run makes."""
        return -(-self.whole // self.batch)

    def command(self, seed: int) -> list[str]:
        """Return the command of one batch."""
        module = f"tests.bench.{self.module}"
        drawn = (self.count, str(self.batch), "--seed", str(seed)) if self.count else ()
        return python_command(module, *self.arguments, *drawn)


TRIALS = (
    Trial(
        "damaged GGUF, read", "fuzz_model", "--mutations", 400, 40_000, (_GUIDE, "--truncations", "40", "--read-only")
    ),
    Trial("damaged GGUF, quantized and loaded", "fuzz_model", "--mutations", 12, 2_000, (_GUIDE, "--truncations", "2")),
    Trial("damaged checkpoints and GGUF, quantized", "refuse_damaged", "--count", 27, 4_000),
    Trial("damaged tokenizers, configs and safetensors", "fuzz_checkpoint", "--mutations", 500, 10_000),
    Trial("damaged vocabularies inside GGUF", "fuzz_vocabulary", "--mutations", 300, 10_000),
    Trial("damaged pictures, sounds and documents", "refuse_media", "--files", 100, 400),
    Trial("kill -9 of a process that writes chats", "kill_chats", "--kills", 4, 200),
    Trial("kill -9 of a process whose tools write files", "kill_tools", "--kills", 10, 200),
    Trial("kill -9 of app, service or worker in use", "kill_app", "--kills", 2, 200),
    Trial("kill -9 of an engine that loads, reads, answers, saves", "kill_engine", "--kills", 24, 800, (_GUIDE,)),
    Trial("kill -9 of a download", "kill_pull", "--kills", 10, 200),
    Trial("kill -9 of quantize, and its disk full", "kill_quantize", "--kills", 8, 200, (_GUIDE, "--offsets", "4")),
    Trial("kill -9 of a checkpoint's pull that converts", "stream_pull", "--kills", 6, 200, _SMALL_PULL),
    Trial("kill -9 of jobs, and a queue", "kill_jobs", "--kills", 4, 200, ("--queued", "5")),
    Trial("kill -9 and full disk of each other writer", "kill_writers", "--attempts", 12, 600, (_GUIDE,)),
    Trial("faults of hub and network", "pull_faults", "--trials", 1, 20),
    Trial("MCP servers that lie, end and ask", "fuzz_mcp", "--servers", 60, 1_000),
    Trial("clients that hang up", "hang_up", "--clients", 60, 500, (_GUIDE,)),
    Trial("what is no request, to every route", "abuse", "", 1, 1),
    Trial("schemas and grammars, good and hostile", "schema_answers", "--cases", 100, 5_000, (_GUIDE,)),
    Trial("tool calls in every format", "tool_calls", "--answers", 40, 6_400, (_GUIDE,)),
    Trial("slow clients beside honest ones", "slow_loris", "", 1, 3, (_GUIDE, "--rounds", "1", "--seconds", "5")),
    Trial("two services of one data folder, one killed", "two_services", "--answers", 30, 300, (_GUIDE,)),
    Trial("a clock that jumps", "clock_jumps", "--jumps", 10, 200, (_GUIDE,)),
    Trial("too little memory, run and quantize", "memory_limits", "--steps", 6, 60, (_GUIDE,)),
    Trial("clients of all kinds for a while", "soak", "--seconds", 20, 1_800, (_GUIDE,)),
)


@dataclass(slots=True)
class Outcome:
    """What came of a trial so far; `failed` are the batches that failed, as commands."""

    trial: Trial
    n_begun: int = 0
    n_running: int = 0
    n_tried: int = 0
    n_failed: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)

    def begin(self, seed: int) -> list[str]:
        """Return the command of the next batch; seeds count from `seed`."""
        self.n_begun += 1
        self.n_running += 1
        return self.trial.command(seed + self.n_begun - 1)

    def end(self, command: Sequence[str], tally: Tally | None, seconds: float) -> None:
        """Count a batch that was begun; one that did not come to its end counts as one failure."""
        self.n_running -= 1
        self.seconds += seconds
        self.n_tried += tally.n_tried if tally else 0
        n_failed = tally.n_failed if tally else 1
        self.n_failed += n_failed
        if n_failed:
            self.failed.append(shlex.join(["python", *command[command.index("-m") :]]))

    def __str__(self) -> str:
        return f"{self.trial.name}: {self.n_tried:,} tried, {self.n_failed:,} failed"


Run = Callable[[Sequence[str]], str]
Clock = Callable[[], float]


class Battery:
    """Runs batches of trials until all are whole or `most_s` are over, one of each at least; seeds count from `seed`.

    The next batch is that of the trial which had the least time so far, so that each gets an equal share. Batches run
    beside each other when `work` is called by several threads: what one needs lies in folders and on ports of its own.
    """

    def __init__(
        self, trials: Sequence[Trial], seed: int, most_s: float, run: Run, clock: Clock = time.monotonic
    ) -> None:
        self.outcomes = tuple(map(Outcome, trials))
        self._seed, self._run, self._clock = seed, run, clock
        self._deadline_s = clock() + most_s
        self._lock, self._is_stopped = threading.Lock(), False

    def work(self) -> None:
        """Run batches until none is left to begin."""
        while begun := self._begin():
            outcome, command = begun
            begun_s = self._clock()
            tally = read_tally(self._run(command))
            with self._lock:
                if tally is None and self._is_stopped:  # Ctrl-C ended the batch too
                    return
                outcome.end(command, tally, self._clock() - begun_s)
                print(outcome, flush=True)

    def stop(self) -> None:
        """Let no further batch begin."""
        self._is_stopped = True

    def _begin(self) -> tuple[Outcome, list[str]] | None:
        with self._lock:
            if self._is_stopped:
                return None
            most = 1 if self._clock() >= self._deadline_s else sys.maxsize
            left = [it for it in self.outcomes if it.n_begun < min(it.trial.n_batches, most)]
            if not left:
                return None
            outcome = min(left, key=lambda it: (it.n_running, it.seconds))
            return outcome, outcome.begin(self._seed)


def run_batch(command: Sequence[str]) -> str:
    """Run `command` and return what it printed; of one that failed the end is printed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        print("\n".join(done.stdout.splitlines()[-_N_LINES:]), flush=True)
    return done.stdout


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return a row for each trial."""
    made = Table("trial", box=None, pad_edge=False)
    for name in ("tried", "failed", "s"):
        made.add_column(name, justify="right")
    for outcome in outcomes:
        made.add_row(outcome.trial.name, f"{outcome.n_tried:,}", f"{outcome.n_failed:,}", f"{outcome.seconds:.0f}")
    return made


def _chosen(names: str) -> Iterator[Trial]:
    wanted = [name.strip() for name in names.split(",")]
    yield from (trial for trial in TRIALS if any(name in trial.name or name == trial.module for name in wanted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for all trials together (a whole run)")
    parser.add_argument("--jobs", type=int, default=1, help="batches that run beside each other (1)")
    parser.add_argument("--only", default="", metavar="NAME,...", help="trials whose names contain one of these")
    today = datetime.now(UTC).date().toordinal() * _SEEDS_PER_DAY
    parser.add_argument("--seed", type=int, default=today, help="the first (that of the day)")
    options = parser.parse_args()
    trials = list(_chosen(options.only))
    if not trials:
        parser.error(f"no trial is called {options.only}; there is: {', '.join(trial.name for trial in TRIALS)}")
    print(f"seed {options.seed}", flush=True)
    battery = Battery(trials, options.seed, 60 * options.minutes, run_batch)
    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = [pool.submit(battery.work) for _ in range(options.jobs)]
        try:
            for job in jobs:
                job.result()
        except KeyboardInterrupt:
            battery.stop()
    show(table(battery.outcomes))
    for outcome in battery.outcomes:
        for command in outcome.failed:
            print(f"repeat: {command}")
    sys.exit(any(outcome.n_failed for outcome in battery.outcomes))


if __name__ == "__main__":
    main()
