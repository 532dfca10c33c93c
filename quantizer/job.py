"""The process that converts and quantizes: `python -m quantizer.job`, started by `quantizer.runner`.

It reads one JSON request from stdin and writes events to stdout. The end of stdin means that nobody waits any more:
then it dies at once, and what it wrote stays for the next run. Native code lives here, where a fault costs one job.
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
from typing import TYPE_CHECKING

from quantizer.errors import UserError
from quantizer.events import Done, Event, Failed, Planned, Warned, encode_event
from quantizer.file_types import file_type_named
from quantizer.overrides import Overrides, parse_override, weight_type_named

if TYPE_CHECKING:
    from quantizer.plan import QuantizePlan

__all__ = ["JobRequest", "main"]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What to do: quantize `source` to `file_type` in `output`, with the options of the command of the same names."""

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

    def encode(self) -> bytes:
        """One line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    def plan(self) -> QuantizePlan:
        """What will be written. Raises UserError as `quantizer.plan.plan` does, UsageError for wrong options."""
        from quantizer import plan  # brings in numpy, which a face does without

        overrides = Overrides(
            tuple(parse_override(text) for text in self.tensor_types),
            weight_type_named(self.output_type) if self.output_type else None,
            weight_type_named(self.embedding_type) if self.embedding_type else None,
        )
        imatrix = Path(self.imatrix) if self.imatrix else None
        options = plan.PlanOptions(overrides, self.max_shard_bytes, self.keeps_split, imatrix)
        return plan.plan(Path(self.source), file_type_named(self.file_type), Path(self.output), options)


def main() -> int:
    """Serve one request; the exit status is 0 when the output stands and 1 when not."""
    events = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what native code prints must not get between the events
    _limit_damage()
    request = JobRequest(**json.loads(sys.stdin.buffer.readline()))
    _die_with_the_parent()

    def send(event: Event) -> None:
        events.write(encode_event(event))

    try:
        _quantize(request, send)
    except UserError as error:
        send(Failed.of(error))
        return 1
    return 0


def _quantize(request: JobRequest, send: Callable[[Event], None]) -> None:
    from quantizer.quantize import execute

    started = time.monotonic()
    plan = request.plan()
    paths = [str(shard.path) for shard in plan.shards]
    send(Planned(paths[0], plan.file_type.name, plan.n_bytes, len(plan.tensors), plan.n_parameters, len(paths)))
    for text in plan.warnings:
        send(Warned(text))
    execute(plan, request.n_threads, request.is_overwriting, send, request.allows_nan)
    send(Done(paths[0], plan.n_bytes, time.monotonic() - started))


def _limit_damage() -> None:
    """No core files, no stack dumps by ggml, and Ctrl-C is the parent's to handle."""
    os.environ["GGML_NO_BACKTRACE"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _die_with_the_parent() -> None:
    def watch() -> None:
        while os.read(0, 1):  # nothing more is ever sent; not sys.stdin, whose lock would outlive the interpreter
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
