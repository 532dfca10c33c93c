"""A row of the table: a request, and what must hold of its answer.

A path leads into the answer's JSON: names and indices between dots, `*` for each item of a list, `[name=value]` for
each item that has this value; `@name` is a header. A stream of events is the list of its data. Strings of a request may
hold `${N.path}`: what the answer to request N of `first` has there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

MODEL: Final = "${model}"
ABSENT: Final = object()  # nothing is at the path
_REFERENCE = re.compile(r"\$\{(\d+)\.([^}]+)\}")
_STEP = re.compile(r"\[[^\]]*\]|[^.\[]+")
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: `POST /path`, with a JSON body, or bytes as they are."""

    to: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a peer promises: the answer to `ask`, after those to `first`, has `status` and what `holds` by path.

    An expectation is a value, a type, a pattern that is found, ABSENT, or a function that must return true. `source`
    says where the promise is written. Where localllm answers `otherwise` on purpose, `ours` and `our_status` hold here
    instead. A row is `scripted` where it only holds for what the fake engine is told to say.
    """

    name: str
    ask: Ask
    source: str
    holds: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    first: Sequence[Ask] = ()
    scripted: bool = False
    otherwise: str = ""
    ours: Mapping[str, Any] = field(default_factory=dict)
    our_status: int = 200


def joined(text: str) -> Callable[[Any], bool]:
    """Return whether the texts at a path are `text` together."""
    return lambda found: "".join(found) == text


def check(row: Row, http: httpx.Client, model: str, *, is_ours: bool) -> None:
    """Ask as `row` says, and fail with all that does not hold."""
    answers: list[Any] = []
    for ask in row.first:
        response = _send(http, ask, answers, model)
        assert response.is_success, f"{ask.to}: {response.status_code} {response.text}"
        answers.append(_parsed(response))
    response = _send(http, row.ask, answers, model)
    differs = is_ours and bool(row.otherwise)
    holds, status = (row.ours, row.our_status) if differs else (row.holds, row.status)
    faults = [] if response.status_code == status else [f"status {response.status_code}, not {status}"]
    answer = _parsed(response)
    for path, expected in holds.items():
        found = response.headers.get(path[1:], _MISSING) if path.startswith("@") else at(answer, path)
        if not _fits(found, expected):
            faults.append(f"{path}: {found!r}, not {expected!r}" if found is not _MISSING else f"{path}: nothing there")
    assert not faults, "\n".join([*faults, response.text[:2000]])


def at(value: Any, path: str) -> Any:
    """Return what is at `path` in `value`; a list where the path goes through each item of one."""
    return _at(value, _STEP.findall(path))


def _at(value: Any, steps: Sequence[str]) -> Any:
    for index, step in enumerate(steps):
        if step == "*" or step.startswith("["):
            if not isinstance(value, list):
                return _MISSING
            found = [_at(item, steps[index + 1 :]) for item in _matching(value, step)]
            return [item for item in found if item is not _MISSING]
        if isinstance(value, list) and step.lstrip("-").isdecimal():
            if not -len(value) <= int(step) < len(value):
                return _MISSING
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return _MISSING
    return value


def _matching(items: Sequence[Any], step: str) -> Iterator[Any]:
    name, _, wanted = step.strip("[]").partition("=")
    for item in items:
        if step == "*" or (isinstance(item, dict) and str(item.get(name)) == wanted):
            yield item


def _fits(found: Any, expected: Any) -> bool:
    if expected is ABSENT or found is _MISSING:
        return expected is ABSENT and found is _MISSING
    if isinstance(expected, type):
        return isinstance(found, expected)
    if isinstance(expected, re.Pattern):
        return bool(expected.search(found if isinstance(found, str) else json.dumps(found)))
    return bool(expected(found)) if callable(expected) else bool(found == expected)


def _send(http: httpx.Client, ask: Ask, answers: Sequence[Any], model: str) -> httpx.Response:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [filled(item) for item in value]
        if not isinstance(value, str):
            return value
        if whole := _REFERENCE.fullmatch(value):
            return at(answers[int(whole[1])], whole[2])
        return _REFERENCE.sub(lambda found: str(at(answers[int(found[1])], found[2])), value.replace(MODEL, model))

    method, path = filled(ask.to).split(" ", 1)
    if isinstance(ask.body, bytes):
        return http.request(method, path, content=ask.body, headers=ask.headers)
    return http.request(method, path, json=None if ask.body is None else filled(ask.body), headers=ask.headers)


def _parsed(response: httpx.Response) -> Any:
    """Return the JSON of an answer, the list of a stream's data, or the text."""
    kind = response.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        lines = [line.removeprefix("data:").strip() for line in response.text.splitlines() if line.startswith("data:")]
        return [json.loads(line) for line in lines if line != "[DONE]"]
    if kind.startswith("application/x-ndjson"):
        return [json.loads(line) for line in response.text.splitlines()]
    try:
        return response.json()
    except ValueError:
        return response.text
