from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from app.engine.backend import Chunk, DecodeStatus
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.messages import Failed, Finished, Output
from app.engine.request import FinishReason, Request, SamplingParams
from app.engine.speculative.cost_model import StepCost
from quantizer.system.errors import EngineError

NEVER = {1: 1.0, 2: 1e6}  # no draft pays
FAST_S, SLOW_S = 0.001, 0.1
SCRIPTED = "<say>" + "abcdefghijklmnopqrstuvwxyz " * 4 + "</say>"


class Clock:
    """A clock that the backend moves on."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Timed(FakeBackend):
    """Takes `each_s` for each decode on its own clock; `on_decode` gets their number."""

    def __init__(self, each_s: float, on_decode: Callable[[int], None] = lambda _n: None, n_ctx: int = 4096) -> None:
        super().__init__(n_ctx=n_ctx)
        self.clock = Clock()
        self.n_decodes = 0
        self._each_s = each_s
        self._on_decode = on_decode

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        self.clock.now_s += self._each_s
        self.n_decodes += 1
        self._on_decode(self.n_decodes)
        return super().decode(chunks)


class RecordedEngine:
    """An engine with its events."""

    def __init__(self, backend: Timed) -> None:
        self.events: list[Output | Finished | Failed] = []
        self.engine = Engine(backend, self.events.append, step_cost=StepCost(dict(NEVER)), clock=backend.clock)

    def ask(self, name: str = "a", prompt: str = SCRIPTED, n_tokens: int = 60, **changes: object) -> None:
        sampling = SamplingParams(temperature=0.0)
        self.engine.submit(Request(request_id=name, prompt=prompt, sampling=sampling, max_tokens=n_tokens, **changes))

    def run(self) -> None:
        while not self.engine.is_idle:
            self.engine.step()
            self.engine.check_integrity()

    def outputs(self, name: str = "a") -> list[str]:
        return [event.text for event in self.events if isinstance(event, Output) and event.request_id == name]

    def finished(self, name: str = "a") -> Finished:
        (finished,) = (event for event in self.events if isinstance(event, Finished) and event.request_id == name)
        return finished


def answered(each_s: float, **changes: object) -> RecordedEngine:
    recorded = RecordedEngine(Timed(each_s))
    recorded.ask(**changes)
    recorded.run()
    return recorded


def test_an_answer_alone_on_a_fast_model_is_output_several_tokens_at_a_time() -> None:
    fast, slow = answered(FAST_S), answered(SLOW_S)
    assert len(slow.outputs()) == 60
    assert len(fast.outputs()) < 20
    assert "".join(fast.outputs()) == "".join(slow.outputs())
    assert fast.finished().usage == slow.finished().usage
    assert fast.finished().reason is FinishReason.LENGTH


def test_every_step_counts_for_what_a_step_costs() -> None:
    fast = answered(FAST_S)
    assert fast.engine.counters.n_steps == 60
    assert fast.engine.counters.busy_s == pytest.approx(60 * FAST_S)


@pytest.mark.parametrize(
    "changes",
    [{"stop": ("mno",)}, {"stop": ("z a",)}, {"n_logprobs": 2}, {"n_logprobs": 2, "logprobs_after_samplers": True}],
)
def test_an_answer_ends_where_it_would_token_by_token(changes: dict[str, object]) -> None:
    fast, slow = answered(FAST_S, **changes), answered(SLOW_S, **changes)
    assert "".join(fast.outputs()) == "".join(slow.outputs())
    assert fast.finished().reason is slow.finished().reason
    assert fast.finished().usage.n_output_tokens == slow.finished().usage.n_output_tokens


def test_the_end_of_an_answer_ends_the_steps() -> None:
    backend = Timed(FAST_S)
    recorded = RecordedEngine(backend)
    recorded.ask(prompt="<say>0123456789</say>", n_tokens=60)
    recorded.run()
    assert "".join(recorded.outputs()) == "0123456789"
    assert recorded.finished().reason is FinishReason.STOP
    assert backend.n_decodes == 11  # the prompt and each digit; what ends it is not computed


def test_a_request_that_arrives_meanwhile_joins_the_next_steps() -> None:
    recorded: RecordedEngine

    def come(n_decodes: int) -> None:
        if n_decodes == 20:
            recorded.ask("b", "<say>others</say>")

    recorded = RecordedEngine(Timed(FAST_S, come))
    recorded.ask()
    recorded.run()
    order = [event.request_id for event in recorded.events if isinstance(event, Output)]
    assert order[order.index("b") : order.index("b") + 8].count("a") >= 3
    assert "".join(recorded.outputs("b")) == "others"
    assert "".join(recorded.outputs("a")) == SCRIPTED.removeprefix("<say>").removesuffix("</say>")[:60]


def test_a_context_is_filled_to_its_last_token() -> None:
    recorded = RecordedEngine(Timed(FAST_S, n_ctx=len(SCRIPTED) + 30))
    recorded.ask(n_tokens=100)
    recorded.run()
    assert len("".join(recorded.outputs())) == 30


def test_a_step_that_fails_meanwhile_fails_its_request_and_leaves_a_clean_slot() -> None:
    def fail(n_decodes: int) -> None:
        if n_decodes == 20:
            raise EngineError("It broke.", "Load the model again.")

    recorded = RecordedEngine(Timed(FAST_S, fail))
    recorded.ask()
    recorded.run()
    (failed,) = (event for event in recorded.events if isinstance(event, Failed))
    assert failed.error.cause == "It broke."
    recorded.ask("b")
    recorded.run()
    assert len("".join(recorded.outputs("b"))) == 60
