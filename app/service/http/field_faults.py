"""Which field of a request is at fault, and what is wrong with it, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from app.protocol.errors import RequestError

_MAX_LOOKED_AT = 5000  # errors: a list of other things than its type says has one for each
_OF_ANOTHER_TYPE = "_type"  # how pydantic's names of errors end that say so
_SHOULD_BE = "Input should be "
_OUR_CLASS = re.compile(r"valid dictionary(?: or instance of \w+)?")
_FIELD_FIRST = re.compile(r"[a-z_][\w.]*(?=[\s:])")


@dataclass(frozen=True, slots=True)
class _Fault:
    """An error at `path` of the request, in the `branch` of unions that was tried."""

    path: tuple[str | int, ...]
    branch: tuple[str | int, ...]
    message: str
    is_type: bool


def invalid_fields(error: ValidationError, fields: object) -> RequestError:
    """Return the error for what is most likely wrong with `fields`. A union reports the faults of each of its types: of
    those the one counts that fits best, which is that with the fewest values of another type, or else that in which
    the fault is deepest and last."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    looked_at = found if len(found) <= 2 * _MAX_LOOKED_AT else [*found[:_MAX_LOOKED_AT], *found[-_MAX_LOOKED_AT:]]
    faults = [_fault(each, fields) for each in looked_at if each["loc"][:1] == found[0]["loc"][:1]]
    branches: dict[tuple[str | int, ...], list[_Fault]] = {}
    for fault in faults:
        branches.setdefault(fault.branch, []).append(fault)
    best = min(branches.values(), key=lambda branch: (sum(fault.is_type for fault in branch), *_reversed(branch[0])))
    fault = next((each for each in best if not each.is_type), best[0])
    messages = [each.message for each in faults if each.path == fault.path] if fault.is_type else [fault.message]
    where = ".".join(map(str, fault.path))
    refusal = RequestError(f"{where or 'The request'}: {_joined(messages)}.", "Correct that field.")
    refusal.param = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault.path).lstrip(".")
    return refusal


def name_field(error: RequestError, fields: Collection[str]) -> None:
    """Note which of `fields` a refusal is about: causes begin with its name."""
    first = _FIELD_FIRST.match(error.cause)
    if not error.param and first and first[0] in fields:
        error.param = first[0]


def _fault(error: ErrorDetails, fields: object) -> _Fault:
    steps = error["loc"]
    is_missing = error["type"] == "missing"
    path: list[str | int] = []
    branch: list[str | int] = []
    for number, (step, is_real) in enumerate(_walked(steps, fields)):
        is_last = number + 1 == len(steps)
        (path if is_real or (is_missing and is_last) else branch).append(step)
    message = _OUR_CLASS.sub("valid object", error["msg"])
    return _Fault(tuple(path), tuple(branch), message, error["type"].endswith(_OF_ANOTHER_TYPE))


def _walked(steps: Sequence[str | int], value: Any) -> Iterator[tuple[str | int, bool]]:
    """Yield each step with whether it leads into `value`; the others name a type that was tried."""
    for step in steps:
        is_real = (isinstance(value, dict) and step in value) or (
            isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value)
        )
        if is_real:
            value = value[step]
        yield step, is_real


def _reversed(fault: _Fault) -> tuple[int, int]:
    """Return a key by which the deepest fault, and the last of a list, comes first."""
    last = fault.path[-1] if fault.path else 0
    return -len(fault.path), -last if isinstance(last, int) else 0


def _joined(messages: Sequence[str]) -> str:
    first, *others = dict.fromkeys(messages)
    return " or ".join([first, *(other.removeprefix(_SHOULD_BE) for other in others)])
