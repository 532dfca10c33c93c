"""A process that runs a model: it says its steps and its results, through the pipe of all native work.

Knows nothing of what the work is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

from quantizer import process
from quantizer.process import Line, child_environment, python_command

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Line", "TaskProgress", "progress", "result", "run_child", "run_task", "serve"]

_PROCESS = "process that runs the model"
_REMEDY = "Try another model."
_PROGRESS, _RESULT = "progress", "result"


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """One of several things that take about the same time is done: the window or the setting at `index`."""

    index: int
    n_steps: int


_Step = TypeVar("_Step", bound=TaskProgress)


def progress(step: TaskProgress) -> Line:
    """Return the line that says that `step` is done."""
    return {"event": _PROGRESS, **asdict(step)}


def result(value: DataclassInstance) -> Line:
    """Return the line that says `value`."""
    return {"event": _RESULT, **asdict(value)}


def run_task(
    module: str,
    request: DataclassInstance,
    step_type: type[_Step],
    watched: Callable[[Iterator[_Step]], Iterator[_Step]],
) -> list[Line]:
    """Let a process of `module` do what is asked and return its results, each the fields of one.

    `watched` is given the steps and hands them on. Leaving early ends the process. Raises as `run_child` does.
    """
    results: list[Line] = []

    def steps() -> Iterator[_Step]:
        with closing(run_child(python_command(module), asdict(request))) as lines:
            for line in lines:
                if line.pop("event") == _PROGRESS:
                    yield step_type(**line)
                else:
                    results.append(line)

    for _ in watched(steps()):
        pass
    return results


def run_child(command: Sequence[str], request: Mapping[str, object]) -> Generator[Line, None, None]:
    """Start `command`, hand it `request` and yield what it says. Leaving early ends it.

    Raises the UserError that the child ended with, EngineError with its last words where it died of something else.
    """
    return process.run_child(command, request, _PROCESS, _REMEDY, child_environment())


def serve(work: Callable[[Line], Iterator[Line]]) -> int:
    """Be the child: say what `work` yields for the request on stdin, and return the exit status."""

    def say_all(request: Line, say: Callable[[Line], None]) -> None:
        for line in work(request):
            say(line)

    return process.serve(say_all)
