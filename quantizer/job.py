"""The process that converts and quantizes: `python -m quantizer.job`, started by `quantizer.runner`.

It reads one JSON request from stdin, then which files came where some were still on their way, and writes events to
stdout. The end of stdin means that nobody waits any more:
then it dies at once, and what it wrote stays for the next run. Native code lives here, where a fault costs one job.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from quantizer.arriving import Arrivals, Shard
from quantizer.child import Line, serve
from quantizer.events import Awaiting, Done, Event, Planned, Warned, encode_event
from quantizer.file_types import file_type_named
from quantizer.overrides import Overrides, parse_override, weight_type_named

if TYPE_CHECKING:
    from quantizer.plan import PlanOptions, QuantizePlan

__all__ = ["JobRequest", "main"]


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
    shards: tuple[Shard, ...] = ()

    @classmethod
    def of(cls, asked: Line) -> JobRequest:
        """The request that came as a line."""
        return cls(**{**asked, "shards": tuple(Shard(**shard) for shard in asked["shards"])})

    def plan(self, arrivals: Arrivals | None = None) -> QuantizePlan:
        """What will be written. Raises UserError as `quantizer.plan.plan` does, UsageError for wrong options."""
        from quantizer.plan import plan  # brings in numpy, which a face does without

        return plan(Path(self.source), file_type_named(self.file_type), Path(self.output), self.options(arrivals))

    def options(self, arrivals: Arrivals | None = None) -> PlanOptions:
        """The options as planning takes them. Raises UsageError for wrong ones."""
        from quantizer.plan import PlanOptions

        overrides = Overrides(
            tuple(parse_override(text) for text in self.tensor_types),
            weight_type_named(self.output_type) if self.output_type else None,
            weight_type_named(self.embedding_type) if self.embedding_type else None,
            {name: weight_type_named(kind) for name, kind in self.mix.items()},
        )
        imatrix, base = (Path(name) if name else None for name in (self.imatrix, self.base))
        arriving = (arrivals or Arrivals()).files(Path(self.source), self.shards)
        return PlanOptions(overrides, self.max_shard_bytes, self.keeps_split, imatrix, base, arriving)


def main() -> int:
    """Serve one request; the exit status is 0 when the output stands and 1 when not."""
    arrivals = Arrivals()
    return serve(partial(_work, arrivals), lambda line: arrivals.came(line["came"]))


def _work(arrivals: Arrivals, asked: Line, say: Callable[[Line], None]) -> None:
    from quantizer.quantize import execute

    def report(event: Event) -> None:
        say(encode_event(event))

    started = time.monotonic()
    arrivals.ask = lambda name: report(Awaiting(name))
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
