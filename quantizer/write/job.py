"""A quantize job: the request, the process that carries it out, and the parent's side of that process.

The process is `python -m quantizer.write.job`: it reads a request from stdin, then which pending files have arrived,
and writes events to stdout. It exits at once when stdin closes; what it wrote stays for the next run. Native code runs
there only, where a fault costs one job: for the parent this module imports neither native code nor numpy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from quantizer.checkpoint.pending_shards import PendingShard, PendingShards
from quantizer.gguf.tensor_types import file_type_named
from quantizer.system.child_request import Message, decode_message, run_child, serve_request
from quantizer.system.memory_limit import ProcessBytes
from quantizer.system.process import ChildProcess, exit_error, python_command
from quantizer.write.events import (
    Event,
    JobPlanned,
    JobWarning,
    OutputDone,
    WaitingForShard,
    decode_event,
    encode_event,
)
from quantizer.write.partial_output import discard_partial
from quantizer.write.plan_options import PlanOptions

if TYPE_CHECKING:
    from quantizer.write.quantize_plan import QuantizePlan


_PROCESS = "quantizing process"
_COMMAND = python_command("quantizer.write.job")
_REMEDY = "Run it again: it resumes where it stopped."


@dataclass(frozen=True, slots=True)
class JobRequest(PlanOptions):
    """The request: quantize `source` to `file_type` in `output`, with the options of the command of the same names.
    `shards` are files of a checkpoint that may still be missing: a message {"arrived": NAME} reports each.
    `load_check` is the command by which `check_load` asks whether llama.cpp loads the result; empty for no check."""

    source: str
    file_type: str
    output: str
    n_threads: int
    is_overwriting: bool
    allow_nan: bool = False
    shards: tuple[PendingShard, ...] = ()
    load_check: tuple[str, ...] = ()

    @classmethod
    def of(cls, message: Message) -> JobRequest:
        shards = tuple(PendingShard(**shard) for shard in message["shards"])
        tuples = {name: tuple(message[name]) for name in ("removed_layers", "load_check")}
        return cls(**{**message, "shards": shards, **tuples})

    def plan(self, arrivals: PendingShards | None = None) -> QuantizePlan:
        """Return the plan. Raises UserError as `quantize_plan.plan` does, UsageError for wrong options."""
        from quantizer.write.quantize_plan import plan  # imports numpy, which user interfaces start without

        pending = (arrivals or PendingShards()).files(Path(self.source), self.shards)
        return plan(Path(self.source), file_type_named(self.file_type), Path(self.output), self, pending)


def run_job(request: JobRequest) -> Iterator[Event]:
    """Run a job in a child process and yield its events as they come; closing the iterator cancels it. Raises the job's
    own UserError when it failed, EngineError with its last output when the process died. A job that failed or was
    cancelled (Ctrl-C too) leaves nothing; one that was killed, with or without its parent, leaves partial files, and
    the same request continues from there."""
    try:
        with closing(run_child(_COMMAND, asdict(request), _PROCESS, _REMEDY)) as lines:
            for line in lines:
                yield decode_event(line)
    except (GeneratorExit, KeyboardInterrupt):
        discard_partial(Path(request.output))
        raise


class RunningQuantization:
    """A job in a child process, while its parent does other things."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child

    async def events(self) -> AsyncIterator[Event]:
        """Yield the events as they come. Raises as `run_job` does."""
        async for line in self._child.lines():
            yield decode_event(decode_message(line))
        if (status := await self._child.wait()) != 0:
            await self._child.end()
            raise exit_error(_PROCESS, status, self._child.stderr, _REMEDY)

    async def mark_arrived(self, name: str) -> None:
        await self._child.send({"arrived": name})


@asynccontextmanager
async def open_job(request: JobRequest) -> AsyncIterator[RunningQuantization]:
    """Run a job as long as the block lasts. However it ends, what the job wrote stays for the same request."""
    child = await ChildProcess.start(_COMMAND, _PROCESS, takes=ProcessBytes.JOB)
    try:
        await child.send(asdict(request))
        yield RunningQuantization(child)
    finally:
        await child.end()


def main() -> int:
    arrivals = PendingShards()
    return serve_request(partial(_work, arrivals), lambda message: arrivals.mark_arrived(message["arrived"]))


def _work(arrivals: PendingShards, message: Message, send: Callable[[Message], None]) -> None:
    from quantizer.write.load_check import check_load
    from quantizer.write.quantize import execute, without_existing

    def report(event: Event) -> None:
        send(encode_event(event))

    started = time.monotonic()
    arrivals.on_wait = lambda name: report(WaitingForShard(name))
    request = JobRequest.of(message)
    plan = request.plan(arrivals)
    plan = plan if request.is_overwriting else without_existing(plan, request.n_threads)

    output = str(plan.shards[0].path)
    report(planned_event(plan))
    for text in plan.warnings:
        report(JobWarning(text))
    if request.load_check:
        check_load(plan, request.load_check, lambda text: report(JobWarning(text)))
    execute(plan, request.n_threads, request.is_overwriting, report, request.allow_nan)
    report(OutputDone(output, plan.n_bytes, time.monotonic() - started))


def planned_event(plan: QuantizePlan) -> JobPlanned:
    n_files, n_tensors, projector = len(plan.shards), len(plan.tensors), str(plan.projector or "")
    output, kind = str(plan.shards[0].path), plan.file_type.name
    return JobPlanned(output, kind, plan.n_bytes, n_tensors, plan.n_parameters, n_files, projector)


if __name__ == "__main__":
    sys.exit(main())
