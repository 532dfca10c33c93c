"""The process that converts and quantizes: `python -m quantizer.job`, started by `quantizer.runner`.

It reads one JSON request from stdin and writes events to stdout. The end of stdin means that nobody waits any more:
then it removes its partial file and dies. Native code lives here, where a fault costs one job.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from quantizer.errors import UserError
from quantizer.events import Done, Event, Failed, Planned, Progress, Warned, encode_event
from quantizer.file_types import file_type_named
from quantizer.output import partial_path

__all__ = ["JobRequest", "main"]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What to do: quantize `source` to `file_type` in `output`."""

    source: str
    file_type: str
    output: str
    n_threads: int
    is_overwriting: bool

    def encode(self) -> bytes:
        """One line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> int:
    """Serve one request; the exit status is 0 when the output stands and 1 when not."""
    events = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what native code prints must not get between the events
    _limit_damage()
    request = JobRequest(**json.loads(sys.stdin.buffer.readline()))
    _die_with_the_parent(Path(request.output))

    def send(event: Event) -> None:
        events.write(encode_event(event))

    try:
        _quantize(request, send)
    except UserError as error:
        send(Failed.of(error))
        return 1
    return 0


def _quantize(request: JobRequest, send: Callable[[Event], None]) -> None:
    from quantizer import quantize  # after the request is in, so that a wrong one fails fast

    started = time.monotonic()
    plan = quantize.plan(Path(request.source), file_type_named(request.file_type), Path(request.output))
    send(Planned(request.output, plan.file_type.name, plan.n_bytes, len(plan.tensors), plan.n_parameters))
    for text in plan.warnings:
        send(Warned(text))
    quantize.execute(plan, request.n_threads, request.is_overwriting, lambda done: send(Progress(**asdict(done))))
    send(Done(request.output, plan.n_bytes, time.monotonic() - started))


def _limit_damage() -> None:
    """No core files, no stack dumps by ggml, and Ctrl-C is the parent's to handle."""
    os.environ["GGML_NO_BACKTRACE"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _die_with_the_parent(output: Path) -> None:
    def watch() -> None:
        while os.read(0, 1):  # nothing more is ever sent; not sys.stdin, whose lock would outlive the interpreter
            pass
        try:
            partial_path(output, os.getpid()).unlink(missing_ok=True)
        finally:
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
