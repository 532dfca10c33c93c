"""A task in a process of its own that runs a model: a request goes in, progress and results come out.

Owns the form of both on the pipe. Independent of what the task is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from app.protocol.codec import decode, encode
from quantizer.system import child_request
from quantizer.system.child_request import Message
from quantizer.system.process import child_environment, python_command

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_PROGRESS, _RESULT = "progress", "result"

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The end of the step at `index` of several that take about the same time: windows or settings."""

    index: int
    n_steps: int


_Progress = TypeVar("_Progress", bound=TaskProgress)


def run_task(
    module: str,
    request: DataclassInstance,
    progress_type: type[_Progress],
    result_type: type[_Result],
    track: Callable[[Iterator[_Progress]], Iterator[_Progress]] = lambda steps: steps,
) -> list[_Result]:
    """Run `module` as a process with `request` and return its results. `track` receives the steps and passes them on.
    Leaving early ends the process. Raises as `run_child` does."""
    results: list[_Result] = []

    def steps() -> Iterator[_Progress]:
        with closing(run_child(python_command(module), encode(request))) as messages:
            for message in messages:
                if message["event"] == _PROGRESS:
                    yield decode(progress_type, message)
                else:
                    results.append(decode(result_type, message))

    for _ in track(steps()):
        pass
    return results


def run_child(command: Sequence[str], request: Mapping[str, object]) -> Generator[Message, None, None]:
    """Start `command` with `request` and yield the messages that it sends. Leaving early ends it. Raises the UserError
    of the child, EngineError with its last output when it crashed."""
    what, remedy = "process that runs the model", "Try another model."
    return child_request.run_child(command, request, what, remedy, child_environment(), runs_llama=True)


def serve_task(request_type: type[_Request], work: Callable[[_Request], Iterator[DataclassInstance]]) -> int:
    """Send the progress and the results that `work` yields, as the child of `run_task`, and return the exit status."""

    def send_all(request: Message, send: Callable[[Message], None]) -> None:
        from app.engine.load.self_test import use_known_variant  # which only the child needs
        from app.settings.settings import load_settings

        use_known_variant(load_settings().cache_dir)
        for value in work(decode(request_type, request)):
            send({"event": _PROGRESS if isinstance(value, TaskProgress) else _RESULT, **encode(value)})

    return child_request.serve_request(send_all)
