"""The outermost layer of the service: the planner's warning in a header, the figures of a request, the access log.

A line has time, route, status, duration, model and tokens: no text of a request or an answer, no query and no key.
Temporary keys (`MeteredKeys`) may only ask models; what their requests used is summed up for whoever created them.
"""

from __future__ import annotations

import hashlib
import secrets
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.common.event_log import log_event
from app.common.terminal import printable_line
from app.engine.messages import Finished
from app.engine.request import Timings, Usage
from app.protocol.errors import RequestError
from app.protocol.status import MeteredKey, MeteredUsage
from app.service.pool.engine_client import EngineClient

_PREFIX = "llm-run-"
_N_SECRET_BYTES, _N_ID_BYTES = 32, 8
_MOST_OPEN = 256
_MOST_TIMES = 10_000  # of the last answers, for the median
WARNING_HEADER = "x-localllm-warning"
_KEY = "localllm.record"
_MOST_SHOWN = 8
_MOST_SHOWN_CHARACTERS = 60
_MOST_LOGGED = 256  # combinations of a path and fields
_ERROR_STATUS = 400
_NO_STATUS = 499  # the client went away before there was one
_SWITCHING_PROTOCOLS = 101


@dataclass(slots=True)
class RequestRecord:
    """The model of a request, and its tokens: those of a prompt with several answers count once for each. `notices` are
    for the client, `fields` are the names in its body, `ignored` those that have no effect. `until_end` holds what
    lasts until the whole answer was sent. `priority` is that of its prompts. `meter` counts the requests of a temporary
    key, if it came with one. `client` is who sends it, for work in which clients take turns: a key where one is
    required, else an address. `owner` is that key, "" for none: what a model has read for one saves no other anything.
    `receive` tells of a request over HTTP whose body was read that its client has gone."""

    model_id: str = ""
    engine: EngineClient | None = None
    n_prompt_tokens: int = 0
    n_output_tokens: int = 0
    started_s: float = field(default_factory=time.monotonic)
    begun_s: float = 0.0  # when its first prompt or input went to the engine
    until_end: ExitStack = field(default_factory=ExitStack)
    notices: list[str] = field(default_factory=list)
    fields: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()
    priority: int = 0
    meter: UsageMeter | None = None
    client: str = ""
    owner: str = ""
    receive: Receive | None = None

    def begin(self) -> None:
        self.begun_s = self.begun_s or time.monotonic()

    def add_answer(self, end: Finished, *, has_tools: bool) -> None:
        self.add(end.usage.n_prompt_tokens, end.usage.n_output_tokens)
        if self.meter is not None:
            self.meter.add_answer(end.usage, end.timings, has_tools=has_tools)

    def add(self, n_prompt_tokens: int, n_output_tokens: int = 0) -> None:
        self.n_prompt_tokens += n_prompt_tokens
        self.n_output_tokens += n_output_tokens

    @property
    def took_s(self) -> float:
        return time.monotonic() - self.started_s

    @property
    def load_s(self) -> float:
        """The seconds until its model could begin: the time to load it, or for one that was there, to find it and make
        its prompt."""
        ready_since_s = self.engine.ready_since_s if self.engine is not None else 0.0
        return max(0.0, max(ready_since_s, self.begun_s) - self.started_s)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the client learns beside the answer: the planner's warnings, once the model is loaded, and notices."""
        planned = self.engine.status.warnings if self.engine is not None else ()
        ignored = (f"localllm ignores {self.ignored_text}.",) if self.ignored else ()
        return (*planned, *self.notices, *ignored)

    @property
    def ignored_text(self) -> str:
        names = [printable_line(name)[:_MOST_SHOWN_CHARACTERS] for name in self.ignored[:_MOST_SHOWN]]
        n_more = len(self.ignored) - len(names)
        return ", ".join(names) + (f" and {n_more} more" if n_more else "")


def record_of(scope: Any) -> RequestRecord:
    record = scope.setdefault(_KEY, RequestRecord())
    assert isinstance(record, RequestRecord)
    return record


class AccessLog:
    """ASGI middleware around everything. `write` receives each line; None for no log."""

    def __init__(self, app: ASGIApp, write: Callable[[str], object] | None = None) -> None:
        self._app = app
        self._write = write
        self._logged: set[tuple[str, str]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        record, status = record_of(scope), _NO_STATUS

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.accept":
                status = _SWITCHING_PROTOCOLS
            elif message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                if record.warnings and message["type"] == "http.response.start":
                    warning = printable_line(" ".join(record.warnings)).encode("ascii", "replace")
                    message["headers"] = [*message["headers"], (WARNING_HEADER.encode(), warning)]
            await send(message)

        try:
            with record.until_end:
                await self._app(scope, receive, send_and_note)
        finally:
            if record.meter is not None and record.model_id and status >= _ERROR_STATUS and status != _NO_STATUS:
                record.meter.add_failure()
            ignored = (scope["path"], record.ignored_text)
            if record.ignored and ignored not in self._logged and len(self._logged) < _MOST_LOGGED:
                self._logged.add(ignored)  # once for each path: a client sends the same ones each time
                log_event("service", printable_line(f"{scope['path']} ignores {record.ignored_text}"))
            if self._write is not None:
                self._write(_line(scope, status, record))


def _line(scope: Scope, status: int, record: RequestRecord) -> str:
    when = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    model = f" model={record.model_id}" if record.model_id else ""
    n_in, n_out = record.n_prompt_tokens, record.n_output_tokens
    tokens = f" prompt_tokens={n_in} output_tokens={n_out}" if n_in or n_out else ""
    ignored = f" ignored={record.ignored_text!r}" if record.ignored else ""
    method = scope.get("method", "WEBSOCKET")  # whose line comes at its end, with the tokens of all its calls
    line = f"{when} {method} {scope['path']} {status} {record.took_s * 1000:.1f}ms{model}{tokens}{ignored}"
    return printable_line(line)


@dataclass(slots=True, eq=False)
class UsageMeter:
    """What the requests with one key used. They are those of `owner`, or where that is empty of the key itself."""

    owner: str = ""
    _sums: MeteredUsage = field(default_factory=MeteredUsage)
    _first_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_TIMES))
    _has_tools: bool = False

    def add_answer(self, usage: Usage, timings: Timings, *, has_tools: bool) -> None:
        sums = self._sums
        is_first = not sums.n_answers or (has_tools and not self._has_tools)
        self._has_tools |= has_tools
        self._first_token_s.append(timings.time_to_first_token_s)
        self._sums = replace(
            sums,
            n_answers=sums.n_answers + 1,
            n_prompt_tokens=sums.n_prompt_tokens + usage.n_prompt_tokens,
            n_cached_tokens=sums.n_cached_tokens + usage.n_cached_tokens,
            n_output_tokens=sums.n_output_tokens + usage.n_output_tokens,
            prefill_s=sums.prefill_s + timings.prefill_s,
            decode_s=sums.decode_s + timings.decode_s,
            n_first_prompt_tokens=usage.n_prompt_tokens if is_first else sums.n_first_prompt_tokens,
            n_first_cached_tokens=usage.n_cached_tokens if is_first else sums.n_first_cached_tokens,
        )

    def add_failure(self) -> None:
        self._sums = replace(self._sums, n_failed=self._sums.n_failed + 1)

    @property
    def usage(self) -> MeteredUsage:
        times = self._first_token_s
        return replace(self._sums, first_token_s=statistics.median(times) if times else None)


class MeteredKeys:
    """The open keys. A secret is kept as its hash, so that looking one up tells nothing by its time."""

    def __init__(self) -> None:
        self._by_hash: dict[bytes, UsageMeter] = {}
        self._by_id: dict[str, UsageMeter] = {}

    @contextmanager
    def open(self, owner: str = "") -> Iterator[MeteredKey]:
        """Give a new key that is valid inside the context; with it somebody sees what `owner` sees. Raises RequestError
        where there are too many."""
        if len(self._by_id) >= _MOST_OPEN:
            raise RequestError(f"There are {_MOST_OPEN} temporary keys already.", "End a program that has one.")
        key = MeteredKey(secrets.token_hex(_N_ID_BYTES), _PREFIX + secrets.token_urlsafe(_N_SECRET_BYTES))
        self._by_id[key.id] = self._by_hash[_hash(key.secret)] = UsageMeter(owner)
        try:
            yield key
        finally:
            del self._by_id[key.id], self._by_hash[_hash(key.secret)]

    def of_secret(self, secret: str) -> UsageMeter | None:
        """Return the meter of the key that a request came with, None for any other key."""
        return self._by_hash.get(_hash(secret)) if secret.startswith(_PREFIX) else None

    def of_id(self, key_id: str) -> UsageMeter | None:
        return self._by_id.get(key_id)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
