"""A task in a process of its own that runs a model: it writes its progress and its results as lines of JSON.

Owns the form of those lines. Knows nothing of what the task is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

from quantizer import process
from quantizer.process import Message, child_environment, python_command

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Message", "TaskProgress", "progress_line", "result_line", "run_child", "run_task", "serve"]

_PROCESS = "process that runs the model"
_REMEDY = "Try another model."
_PROGRESS, _RESULT = "progress", "result"


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The end of the step at `index` of several that take about the same time: windows or settings."""

    index: int
    n_steps: int


_Progress = TypeVar("_Progress", bound=TaskProgress)


def progress_line(step: TaskProgress) -> Message:
    """Return the line of a step."""
    return {"event": _PROGRESS, **asdict(step)}


def result_line(value: DataclassInstance) -> Message:
    """Return the line of a result."""
    return {"event": _RESULT, **asdict(value)}


def run_task(
    module: str,
    request: DataclassInstance,
    progress_type: type[_Progress],
    track: Callable[[Iterator[_Progress]], Iterator[_Progress]],
) -> list[Message]:
    """Run `module` as a process with `request` and return the fields of each of its results.

    `track` receives the steps and passes them on. Leaving early ends the process. Raises as `run_child` does.
    """
    results: list[Message] = []

    def steps() -> Iterator[_Progress]:
        with closing(run_child(python_command(module), asdict(request))) as lines:
            for line in lines:
                if line.pop("event") == _PROGRESS:
                    yield progress_type(**line)
                else:
                    results.append(line)

    for _ in track(steps()):
        pass
    return results


def run_child(command: Sequence[str], request: Mapping[str, object]) -> Generator[Message, None, None]:
    """Start `command` with `request` and yield the lines that it writes. Leaving early ends it.

    Raises the UserError of the child, EngineError with its last lines when it crashed.
    """
    return process.run_child(command, request, _PROCESS, _REMEDY, child_environment())


def serve(work: Callable[[Message], Iterator[Message]]) -> int:
    """Write what `work` yields for the request on stdin, as the child, and return the exit status."""

    def write_all(request: Message, write: Callable[[Message], None]) -> None:
        for line in work(request):
            write(line)

    return process.serve_request(write_all)
