"""The parent's side of a job: starts the process, hands out its events, and clears up when it is cancelled.

`run_job` waits for each event; `open_job` is for who has other things to do meanwhile, and tells the job which files
came. It imports no native code and no numpy, so a face may use it.

The process that converts and quantizes: `python -m quantizer.write.job`, started by `quantizer.write.job`.

It reads one JSON request from stdin, then which files came where some were still on their way, and writes events to
stdout. The end of stdin means that nobody waits any more:
then it dies at once, and what it wrote stays for the next run. Native code lives here, where a fault costs one job.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from quantizer.checkpoint.pending_shards import PendingShard, PendingShards
from quantizer.gguf.file_types import file_type_named
from quantizer.mix.overrides import Overrides, parse_override, weight_type_named
from quantizer.process import Line, checked, death, run_child, serve
from quantizer.write.events import Done, Event, Planned, WaitingForShard, Warned, decode_event, encode_event
from quantizer.write.partial_output import discard_partial

__all__ = ["JobRequest", "RunningQuantization", "main", "open_job", "run_job"]

_PROCESS = "quantizing process"
_MAX_LINE_BYTES = 4 << 20
_GRACE_S = 5.0

_REMEDY = "Run it again: it goes on where it stopped."


def run_job(request: JobRequest) -> Iterator[Event]:
    """Run a job in a child process and yield its events as they come; closing the iterator cancels it.

    Raises the job's own UserError when it failed, EngineError with its last words when the process died. A job that
    failed or was cancelled (Ctrl-C too) leaves nothing; one that was killed, with or without its parent, leaves what it
    wrote under partial names, and the same request goes on from there.
    """
    try:
        with closing(run_child(_command(), asdict(request), _PROCESS, _REMEDY)) as lines:
            for line in lines:
                yield decode_event(line)
    except (GeneratorExit, KeyboardInterrupt):
        discard_partial(Path(request.output))
        raise


@dataclass(frozen=True, slots=True)
class RunningQuantization:
    """A job that runs, while its parent does other things."""

    child: asyncio.subprocess.Process
    errors: IO[bytes]

    async def events(self) -> AsyncIterator[Event]:
        """Yield what it says as it comes. Raises as `run_job` does."""
        assert self.child.stdout is not None
        async for line in self.child.stdout:
            yield decode_event(checked(line))
        if (status := await self.child.wait()) != 0:
            raise death(_PROCESS, status, self.errors, _REMEDY)

    async def came(self, name: str) -> None:
        """Tell it that the file `name` is whole."""
        await self.say({"came": name})

    async def say(self, line: Mapping[str, object]) -> None:
        assert self.child.stdin is not None
        with suppress(ConnectionError):  # a child that ended tells of it by what it said, or by its status
            self.child.stdin.write(json.dumps(line).encode() + b"\n")
            await self.child.stdin.drain()


@asynccontextmanager
async def open_job(request: JobRequest) -> AsyncIterator[RunningQuantization]:
    """Run a job as long as the block lasts. However that ends, what the job wrote stays for the same request."""
    with tempfile.TemporaryFile() as errors:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *_command(), stdin=pipe, stdout=pipe, stderr=errors, limit=_MAX_LINE_BYTES
        )
        job = RunningQuantization(child, errors)
        try:
            await job.say(asdict(request))
            yield job
        finally:
            await _end(child)


async def _end(child: asyncio.subprocess.Process) -> None:
    """Let the child go, which it does when its stdin ends, and make sure."""
    assert child.stdin is not None
    child.stdin.close()
    try:
        await asyncio.wait_for(child.wait(), _GRACE_S)
    except TimeoutError:
        child.kill()
        await child.wait()


def _command() -> list[str]:
    return [sys.executable, "-P", "-m", "quantizer.write.job"]


if TYPE_CHECKING:
    from quantizer.write.quantize_plan import PlanOptions, QuantizePlan


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What to do: quantize `source` to `file_type` in `output`, with the options of the command of the same names.

    `mix` says by name which type a tensor gets, whatever the other options say. `shards` are the files of a checkpoint
    that may not be there yet: a line {"came": NAME} says that one is.
    """

    source: str
    file_type: str
    output: str
    n_threads: int
    is_overwriting: bool
    allows_nan: bool = False
    tensor_types: tuple[str, ...] = ()
    output_type: str = ""
    embedding_type: str = ""
    max_shard_bytes: int = 0
    keeps_split: bool = False
    imatrix: str = ""
    mix: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    shards: tuple[PendingShard, ...] = ()

    @classmethod
    def of(cls, asked: Line) -> JobRequest:
        """The request that came as a line."""
        return cls(**{**asked, "shards": tuple(PendingShard(**shard) for shard in asked["shards"])})

    def plan(self, arrivals: PendingShards | None = None) -> QuantizePlan:
        """What will be written. Raises UserError as `quantizer.write.quantize_plan.plan` does, UsageError for wrong options."""
        from quantizer.write.quantize_plan import plan  # brings in numpy, which a face does without

        return plan(Path(self.source), file_type_named(self.file_type), Path(self.output), self.options(arrivals))

    def options(self, arrivals: PendingShards | None = None) -> PlanOptions:
        """The options as planning takes them. Raises UsageError for wrong ones."""
        from quantizer.write.quantize_plan import PlanOptions

        overrides = Overrides(
            tuple(parse_override(text) for text in self.tensor_types),
            weight_type_named(self.output_type) if self.output_type else None,
            weight_type_named(self.embedding_type) if self.embedding_type else None,
            {name: weight_type_named(kind) for name, kind in self.mix.items()},
        )
        imatrix, base = (Path(name) if name else None for name in (self.imatrix, self.base))
        arriving = (arrivals or PendingShards()).files(Path(self.source), self.shards)
        return PlanOptions(overrides, self.max_shard_bytes, self.keeps_split, imatrix, base, arriving)


def main() -> int:
    """Serve one request; the exit status is 0 when the output stands and 1 when not."""
    arrivals = PendingShards()
    return serve(partial(_work, arrivals), lambda line: arrivals.came(line["came"]))


def _work(arrivals: PendingShards, asked: Line, say: Callable[[Line], None]) -> None:
    from quantizer.write.quantize import execute

    def report(event: Event) -> None:
        say(encode_event(event))

    started = time.monotonic()
    arrivals.ask = lambda name: report(WaitingForShard(name))
    request = JobRequest.of(asked)
    plan = request.plan(arrivals)

    paths = [str(shard.path) for shard in plan.shards]
    report(Planned(paths[0], plan.file_type.name, plan.n_bytes, len(plan.tensors), plan.n_parameters, len(paths)))
    for text in plan.warnings:
        report(Warned(text))
    execute(plan, request.n_threads, request.is_overwriting, report, request.allows_nan)
    report(Done(paths[0], plan.n_bytes, time.monotonic() - started))


if __name__ == "__main__":
    sys.exit(main())
