"""The engine's events on their way to the service: outputs of several short steps are sent as one.

Every message costs the service and its client about half a millisecond of a processor, which a model that computes on
all of them waits for. Owns how long a text may wait. Independent of what computes and of how messages are written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from app.engine.loop.core import Event
from app.engine.loop.verification import OUTPUT_INTERVAL_S
from app.engine.protocol.messages import Output

MAX_OUTPUT_INTERVAL_S = 0.1  # longer is seen


class Outbox:
    """The events since the last `send`, which gets all of them, in order for each request."""

    def __init__(self, send: Callable[..., None], clock: Callable[[], float] = time.perf_counter) -> None:
        self._send = send
        self._clock = clock
        self._outputs: dict[str, Output] = {}  # by request
        self._ends: list[Event] = []
        self._sent_s = clock()

    def add(self, event: Event) -> None:
        """Add an event; the text of a request is appended to what waits."""
        if not isinstance(event, Output):
            self._ends.append(event)
            return
        waiting = self._outputs.get(event.request_id)
        if waiting is not None:
            event = replace(
                event,
                text=waiting.text + event.text,
                logprobs=waiting.logprobs + event.logprobs,
                tokens=waiting.tokens + event.tokens,
            )
        self._outputs[event.request_id] = event

    def flush_if_due(self) -> None:
        """Send all events if an answer has ended, or enough time has passed for as many answers as have new text."""
        interval_s = min(MAX_OUTPUT_INTERVAL_S, OUTPUT_INTERVAL_S * len(self._outputs))
        if self._ends or self._clock() - self._sent_s >= interval_s:
            self.flush()

    def flush(self) -> None:
        """Send all events; the end of an answer follows its text."""
        events = [*self._outputs.values(), *self._ends]
        if events:
            self._outputs, self._ends = {}, []
            self._send(*events)
        self._sent_s = self._clock()
