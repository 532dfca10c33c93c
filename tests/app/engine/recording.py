"""The events of an engine by request, and running it until it is idle."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from app.engine.backend import Backend
from app.engine.loop.core import Engine, Event
from app.engine.messages import Failed, Finished, Output
from app.engine.request import Request, TokenLogprob
from quantizer.system.errors import ErrorInfo

__all__ = ["Record", "answered", "run"]


class Record:
    """The events of an engine, by request; `order` has the request of each output."""

    def __init__(self) -> None:
        self.text: dict[str, str] = defaultdict(str)
        self.logprobs: dict[str, list[TokenLogprob]] = defaultdict(list)
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.finished: dict[str, Finished] = {}
        self.failed: dict[str, ErrorInfo] = {}
        self.order: list[str] = []

    def __call__(self, event: Event) -> None:
        name = event.request_id
        assert name not in self.finished, "nothing follows the end of a request"
        assert name not in self.failed, "nothing follows the failure of a request"
        match event:
            case Output():
                self.text[name] += event.text
                self.logprobs[name] += event.logprobs
                self.tokens[name] += event.tokens
                self.order.append(name)
                if event.logprobs:
                    assert event.logprobs[-1].offset <= len(self.text[name]), "no entry comes before its text"
            case Finished():
                self.finished[name] = event
            case Failed():
                self.failed[name] = event.error


def run(engine: Engine, *wanted: Request, max_steps: int = 5000) -> None:
    """Submit what is wanted, step until `engine` is idle, and check its integrity after each step."""
    for request in wanted:
        engine.submit(request)
    for _ in range(max_steps):
        if engine.is_idle:
            return
        engine.step()
        engine.check_integrity()
    raise AssertionError("the engine does not become idle")


def answered(backend: Backend, *wanted: Request, **options: Any) -> Record:
    """Return the record of a new engine that has run all that is wanted."""
    record = Record()
    run(Engine(backend, record, **options), *wanted)
    return record
