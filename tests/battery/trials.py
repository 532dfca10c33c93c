"""The trials of the battery: ways to break localllm, and how batches of them are run.

Owns the list, the order of batches, what is counted of them, and the record of those that ended, by which a run goes on
where another stopped. Knows nothing of what a trial does, but its command and its tally.
"""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from quantizer.system.process import python_command
from tests.battery.tally import Tally, read_tally

__all__ = ["TRIALS", "Battery", "Ended", "Outcome", "Trial"]

_GUIDE = str(Path(__file__).parents[2] / "assets" / "guide" / "guide-Q8_0.gguf")
_LONGEST_S = 300.0  # of a batch: one that failed is to be repeated
_SHORT = ("--only", "chats,import,pull,forget,prune,ls,knowledge")  # journeys that start no engine
_LONG = ("--only", "first,run,serve,app,piped,quantize,batch,doctor")
_SMALL_PULL = ("--layers", "8", "--width", "512", "--shards", "4", "--megabytes-per-s", "2")


@dataclass(frozen=True, slots=True)
class Trial:
    """A way to break something, a `module` of this folder: its option `count` sets how many attempts a batch makes, at
    least `batch`, of `whole` in all. Without it a batch is always the same, one attempt, and takes no seed.
    """

    name: str
    module: str
    count: str
    batch: int
    whole: int
    arguments: tuple[str, ...] = ()

    def is_called(self, name: str) -> bool:
        """Return whether `name` is its module's, or part of its own."""
        return name in self.name or name == self.module.rpartition(".")[2]

    def command(self, seed: int, n_attempts: int) -> list[str]:
        """Return the command of one batch."""
        module = f"tests.battery.{self.module}"
        drawn = (self.count, str(n_attempts), "--seed", str(seed)) if self.count else ()
        return python_command(module, *self.arguments, *drawn)


TRIALS = (
    Trial(
        "damaged GGUF, read",
        "damage.fuzz_model",
        "--mutations",
        400,
        40_000,
        (_GUIDE, "--truncations", "40", "--read-only"),
    ),
    Trial(
        "damaged GGUF, quantized and loaded",
        "damage.fuzz_model",
        "--mutations",
        12,
        2_000,
        (_GUIDE, "--truncations", "2"),
    ),
    Trial("damaged checkpoints and GGUF, quantized", "damage.refuse_damaged", "--count", 27, 4_000),
    Trial("damaged tokenizers, configs and safetensors", "damage.fuzz_checkpoint", "--mutations", 500, 10_000),
    Trial("damaged vocabularies inside GGUF", "damage.fuzz_vocabulary", "--mutations", 300, 10_000),
    Trial("readers of foreign bytes, guided by coverage", "fuzz", "--executions", 3_500, 1_000_000),
    Trial("damaged pictures, sounds and documents", "damage.refuse_media", "--files", 100, 400),
    Trial("kill -9 of a process that writes chats", "kills.kill_chats", "--kills", 4, 200),
    Trial("kill -9 of a process whose tools write files", "kills.kill_tools", "--kills", 10, 200),
    Trial("kill -9 of app, service or worker in use", "kills.kill_app", "--kills", 2, 200),
    Trial("kill -9 of an engine that loads, reads, answers, saves", "kills.kill_engine", "--kills", 24, 800, (_GUIDE,)),
    Trial("kill -9 of a download", "kills.kill_pull", "--kills", 10, 200),
    Trial(
        "kill -9 of quantize, and its disk full", "kills.kill_quantize", "--kills", 8, 200, (_GUIDE, "--offsets", "4")
    ),
    Trial("kill -9 of a checkpoint's pull that converts", "kills.stream_pull", "--kills", 6, 200, _SMALL_PULL),
    Trial("kill -9 of jobs, and a queue", "kills.kill_jobs", "--kills", 4, 200, ("--queued", "5")),
    Trial("kill -9 of a batch, its service and its engine", "kills.kill_batch", "--kills", 6, 200),
    Trial("kill -9 of a service that answers a batch", "kills.kill_batch_service", "--kills", 4, 200),
    Trial("kill -9 and full disk of each other writer", "kills.kill_writers", "--attempts", 12, 600, (_GUIDE,)),
    Trial("Nth call to the system fails: short commands", "faults.sweep", "--attempts", 20, 3_000, (_GUIDE, *_SHORT)),
    Trial("Nth call to the system fails: answers", "faults.sweep", "--attempts", 8, 3_000, (_GUIDE, *_LONG)),
    Trial("faults of hub and network", "clients.pull_faults", "--trials", 1, 20),
    Trial("MCP servers that lie, end and ask", "clients.fuzz_mcp", "--servers", 60, 1_000),
    Trial("clients that hang up", "clients.hang_up", "--clients", 60, 500, (_GUIDE,)),
    Trial("what is no request, to every route", "clients.abuse", "", 1, 1),
    Trial("schemas and grammars, good and hostile", "clients.schema_answers", "--cases", 100, 5_000, (_GUIDE,)),
    Trial("tool calls in every format", "clients.tool_calls", "--answers", 40, 6_400, (_GUIDE,)),
    Trial(
        "slow clients beside honest ones", "clients.slow_loris", "", 1, 3, (_GUIDE, "--rounds", "1", "--seconds", "5")
    ),
    Trial("two services of one data folder, one killed", "kills.two_services", "--answers", 30, 300, (_GUIDE,)),
    Trial("a clock that jumps", "machine.clock_jumps", "--jumps", 10, 200, (_GUIDE,)),
    Trial("too little memory, run and quantize", "machine.memory_limits", "--steps", 6, 60, (_GUIDE,)),
    Trial("worlds on a simulated clock", "world", "--worlds", 20, 10_000),
    Trial("clients of all kinds for a while", "clients.soak", "--seconds", 20, 1_800, (_GUIDE,)),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some attempts of a trial, and the command that makes them."""

    n_attempts: int
    command: Sequence[str]

    def repeated(self) -> str:
        """Return the command as a person types it."""
        return shlex.join(["python", *self.command[self.command.index("-m") :]])


@dataclass(frozen=True, slots=True)
class Ended:
    """A batch that ended, as a line of the record; `command` repeats it, `n_attempts` is what it was asked for."""

    trial: str
    n_attempts: int
    n_tried: int  # as the trial counts
    n_failed: int
    seconds: float
    command: str


@dataclass(slots=True)
class Outcome:
    """What came of a trial so far; `failed` are the batches that failed, as commands."""

    trial: Trial
    n_batches: int = 0  # begun
    n_begun: int = 0  # attempts of theirs
    n_ended: int = 0
    n_running: int = 0
    n_tried: int = 0  # as the trials count
    n_failed: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)

    def begin(self, seed: int, left_s: float) -> Batch:
        """Return the next batch, which is to fit into `left_s`; seeds count from `seed`.

        Each is twice as large as the one before, since starting and checking takes most of a small one.
        """
        n_attempts = self.trial.batch
        if self.trial.count and self.n_ended:
            n_most = int(min(left_s, _LONGEST_S) * self.n_ended / self.seconds) if self.seconds else self.trial.whole
            n_rest = self.trial.whole - self.n_begun
            n_attempts = max(n_attempts, min(n_attempts << self.n_batches, n_most, n_rest))
        command = self.trial.command(seed + self.n_batches, n_attempts)
        self.n_batches += 1
        self.n_running += 1
        self.n_begun += n_attempts
        return Batch(n_attempts, command)

    def end(self, batch: Batch, tally: Tally | None, seconds: float) -> Ended:
        """Count a batch that was begun; one that did not come to its end counts as one failure."""
        n_tried, n_failed = (tally.n_tried, tally.n_failed) if tally else (0, 1)
        ended = Ended(self.trial.name, batch.n_attempts, n_tried, n_failed, round(seconds, 1), batch.repeated())
        self.n_running -= 1
        self._count(ended)
        return ended

    def go_on(self, ended: Ended) -> None:
        """Count a batch of an earlier run."""
        self.n_batches += 1
        self.n_begun += ended.n_attempts
        self._count(ended)

    def _count(self, ended: Ended) -> None:
        self.n_ended += ended.n_attempts
        self.seconds += ended.seconds
        self.n_tried += ended.n_tried
        self.n_failed += ended.n_failed
        if ended.n_failed:
            self.failed.append(ended.command)

    def __str__(self) -> str:
        return f"{self.trial.name}: {self.n_tried:,} tried, {self.n_failed:,} failed"


def _read(record: Path) -> list[Ended]:
    return [Ended(**json.loads(line)) for line in record.read_text("utf-8").splitlines()]


Run = Callable[[Sequence[str]], str]
Clock = Callable[[], float]


class Battery:
    """Runs batches of trials until all are whole or `most_s` are over, one of each at least; seeds count from `seed`.

    The next batch is that of the trial which had the least time so far, so that each gets an equal share. Batches run
    beside each other when `work` is called by several threads: what one needs lies in folders and on ports of its own.
    The batches in the file `record` count as well, and those that end here are added to it.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        seed: int,
        most_s: float,
        run: Run,
        clock: Clock = time.monotonic,
        record: Path | None = None,
    ) -> None:
        self.outcomes = tuple(map(Outcome, trials))
        self._record = record
        for ended in _read(record) if record and record.exists() else ():
            for outcome in self.outcomes:
                if outcome.trial.name == ended.trial:
                    outcome.go_on(ended)
        self._seed, self._run, self._clock = seed, run, clock
        self._deadline_s = clock() + most_s
        self._lock, self._is_stopped = threading.Lock(), False

    def work(self) -> None:
        """Run batches until none is left to begin."""
        while begun := self._begin():
            outcome, batch = begun
            begun_s = self._clock()
            tally = read_tally(self._run(batch.command))
            with self._lock:
                if tally is None and self._is_stopped:  # Ctrl-C ended the batch too
                    return
                ended = outcome.end(batch, tally, self._clock() - begun_s)
                if self._record:
                    with self._record.open("a", encoding="utf-8") as record:
                        record.write(json.dumps(asdict(ended)) + "\n")
                print(outcome, flush=True)

    def stop(self) -> None:
        """Let no further batch begin."""
        self._is_stopped = True

    def _begin(self) -> tuple[Outcome, Batch] | None:
        with self._lock:
            if self._is_stopped:
                return None
            left_s = self._deadline_s - self._clock()
            left = [it for it in self.outcomes if it.n_begun < (it.trial.whole if left_s > 0 else 1)]
            if not left:
                return None
            outcome = min(left, key=lambda it: (it.n_running, it.seconds))
            return outcome, outcome.begin(self._seed, left_s)
