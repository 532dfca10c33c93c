"""The events of an engine by request, and running it until it is idle."""

from __future__ import annotations

from collections import defaultdict

from app.engine.loop.core import Engine, Event
from app.engine.messages import Failed, Finished, Output
from app.engine.request import TokenLogprob
from quantizer.system.errors import ErrorInfo

__all__ = ["Record", "run"]


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


def run(engine: Engine, max_steps: int = 5000) -> None:
    """Step until `engine` is idle, and check its integrity after each step."""
    for _ in range(max_steps):
        if engine.is_idle:
            return
        engine.step()
        engine.check_integrity()
    raise AssertionError("the engine does not become idle")
