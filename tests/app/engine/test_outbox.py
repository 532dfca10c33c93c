from __future__ import annotations

import pytest

from app.engine.loop.core import Event
from app.engine.loop.verification import OUTPUT_INTERVAL_S
from app.engine.outbox import MAX_OUTPUT_INTERVAL_S, Outbox
from app.engine.protocol.messages import Failed, Output
from app.engine.request import TokenLogprob
from quantizer.system.errors import ErrorInfo

LOGPROB = TokenLogprob(b"x", -1.0, (), 0, 120)


class Sent:
    """An outbox with a clock that is set by hand, and what it has sent."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.groups: list[tuple[Event, ...]] = []
        self.outbox = Outbox(lambda *events: self.groups.append(events), clock=lambda: self.now_s)

    def step(self, step_s: float, *events: Event) -> None:
        self.now_s += step_s
        for event in events:
            self.outbox.add(event)
        self.outbox.flush_if_due()


def failed(request_id: str) -> Failed:
    return Failed(request_id, ErrorInfo("cause", "remedy"))


def test_outputs_of_short_steps_are_sent_as_one() -> None:
    sent = Sent()
    for n_tokens, text in enumerate("abcd", start=1):
        sent.step(OUTPUT_INTERVAL_S / 2, Output("r", text, n_tokens, (LOGPROB,), (ord(text),)))
    assert sent.groups == [
        (Output("r", "ab", 2, (LOGPROB, LOGPROB), (97, 98)),),
        (Output("r", "cd", 4, (LOGPROB, LOGPROB), (99, 100)),),
    ]


def test_the_output_of_a_long_step_is_sent_at_once() -> None:
    sent = Sent()
    sent.step(OUTPUT_INTERVAL_S, Output("r", "a", 1))
    assert sent.groups == [(Output("r", "a", 1),)]


def test_an_end_is_sent_at_once_and_follows_its_text() -> None:
    sent = Sent()
    sent.step(0.0, Output("r", "a", 1), Output("s", "x", 1))
    assert not sent.groups
    sent.step(0.0, Output("r", "b", 2), failed("r"))
    assert sent.groups == [(Output("r", "ab", 2), Output("s", "x", 1), failed("r"))]


@pytest.mark.parametrize(("n_answers", "interval_s"), [(2, 2 * OUTPUT_INTERVAL_S), (50, MAX_OUTPUT_INTERVAL_S)])
def test_several_answers_wait_longer_but_not_visibly(n_answers: int, interval_s: float) -> None:
    sent = Sent()
    outputs = [Output(str(number), "a", 1) for number in range(n_answers)]
    sent.step(interval_s * 0.9, *outputs)
    assert not sent.groups
    sent.step(interval_s * 0.1 + 1e-9, *outputs)
    assert [len(group) for group in sent.groups] == [n_answers]


def test_without_events_nothing_is_sent() -> None:
    sent = Sent()
    sent.step(1.0)
    sent.outbox.flush()
    assert not sent.groups
