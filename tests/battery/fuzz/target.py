"""A reader of foreign bytes as a target of fuzzing, and what of its behaviour is a failure.

A reader may take an input, or refuse it with an error that it is allowed. Anything else fails: another exception, one
without a remedy, a result that is not sound (the reader's own assertions), more time of the processor than its size
allows, and an end of the process, which the caller sees.
"""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

from quantizer.system.errors import UserError

__all__ = ["Failure", "Form", "Reader", "Target", "Unusable", "attempt", "document"]

Reader = Callable[[bytes], object]
_LONGEST_BYTES = 10_000  # of an error: what a file says must not fill the screen
_OVERRUN = 20  # times its limit, after which an input is given up
_ROOT = Path(__file__).parents[3]


class Form(Enum):
    """What inputs are, and so how new ones are made of old ones."""

    BYTES = "bytes"
    TEXT = "text"
    JSON = "json"
    EVENTS = "events"  # lines of server-sent events, with JSON
    WEIGHTS = "weights"  # a length in eight bytes, and so much JSON


@dataclass(frozen=True, slots=True)
class Target:
    """A reader. `opened` imports what it needs and makes it, with a folder that it may write to. Code of `packages` is
    what coverage counts; `words` are put into inputs now and then. An input of `max_bytes` may take `base_s` of the
    processor and `s_per_kib` for each KiB, and the process grow by `memory_bytes`."""

    name: str
    opened: Callable[[Path], Reader]
    packages: tuple[str, ...]
    seeds: Callable[[], list[bytes]]
    form: Form = Form.JSON
    words: tuple[str, ...] = ()
    allowed: tuple[type[Exception], ...] = (UserError,)
    max_bytes: int = 4_096
    base_s: float = 0.5
    s_per_kib: float = 0.015
    memory_bytes: int = 1 << 30

    def limit_s(self, data: bytes) -> float:
        return self.base_s + self.s_per_kib * len(data) / 1024


@dataclass(frozen=True, slots=True)
class Failure:
    """What an input did; failures with the same `key` are taken for one."""

    key: str
    words: str


class Unusable(Exception):
    """The input cannot be given to the reader: it is not of the form that the harness makes it of."""


def document(data: bytes) -> Any:
    """Return the JSON of an input. Raises Unusable for anything else."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unusable from error


class _Overrun(BaseException):
    """The input took many times its limit. No Exception: readers catch those."""


def attempt(target: Target, read: Reader, data: bytes) -> Failure | None:
    """Return what is wrong with how `read` takes `data`, None where nothing is."""
    begun_s = time.process_time()
    try:
        with _given_up_after(_OVERRUN * target.limit_s(data)):
            try:
                read(data)
            except Unusable:
                return None
            except target.allowed as error:
                if isinstance(error, UserError) and (fault := _fault_of(error)):
                    return Failure(f"an error {fault} {_place(error)}", f"{type(error).__name__}: {error}")
    except _Overrun as error:
        return Failure(
            f"takes too long {_place(error)}", f"more than {_OVERRUN} times its {target.limit_s(data):.2f} s"
        )
    except Exception as error:
        return Failure(f"{type(error).__name__} {_place(error)}", f"{type(error).__name__}: {str(error)[:300]}")
    took_s = time.process_time() - begun_s
    if took_s > target.limit_s(data):
        return Failure(
            "takes too long", f"{took_s:.2f} s of the processor, and {target.limit_s(data):.2f} s are allowed"
        )
    return None


def _fault_of(error: UserError) -> str:
    if not error.cause or not error.remedy:
        return "without cause or remedy"
    try:
        size = len(str(error).encode())
    except UnicodeEncodeError:
        return "that is not UTF-8"
    return "that is too long" if size > _LONGEST_BYTES else ""


def _place(error: BaseException) -> str:
    """Return the last line of our own code that an exception passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(_ROOT))]
    ours = [frame for frame in frames if "site-packages" not in frame.filename]
    at = next((frame for frame in reversed(ours) if Path(frame.filename) != Path(__file__)), ours[-1])
    return f"in {Path(at.filename).relative_to(_ROOT)}, {at.name}"


@contextmanager
def _given_up_after(limit_s: float) -> Iterator[None]:
    """Raise _Overrun in this block once it has taken `limit_s` of the processor, where the system has such a timer."""
    if not hasattr(signal, "ITIMER_VIRTUAL"):
        yield
        return

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise _Overrun

    former = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)
