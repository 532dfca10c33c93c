"""A process that runs a model: the pipe of all native work, for work that is a generator of lines.

Knows nothing of what the lines mean.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from app.processes import child_environment
from quantizer import child
from quantizer.child import Line

__all__ = ["Line", "lines_of", "serve"]

_PROCESS = "process that runs the model"
_REMEDY = "Try another model."


def lines_of(command: Sequence[str], request: Mapping[str, object]) -> Generator[Line, None, None]:
    """Start `command`, hand it `request` and yield what it says. Leaving early ends it.

    Raises the UserError that the child ended with, EngineError with its last words where it died of something else.
    """
    return child.lines_of(command, request, _PROCESS, _REMEDY, child_environment())


def serve(work: Callable[[Line], Iterator[Line]]) -> int:
    """Be the child: say what `work` yields for the request on stdin, and return the exit status."""

    def say_all(request: Line, say: Callable[[Line], None]) -> None:
        for line in work(request):
            say(line)

    return child.serve(say_all)
