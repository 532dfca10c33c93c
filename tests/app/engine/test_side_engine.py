"""Batches in a context of their own: which requests go there, when it is made and given back, and without memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from app.engine.backend import Backend
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.request import BATCH_PRIORITY, Request, SamplingParams
from app.engine.side_engine import RETRY_S, BatchEngine
from quantizer.system.errors import EngineError
from tests.app.engine.recording import Record


def request(name: str, n_tokens: int = 5, prompt: str = "hello") -> Request:
    sampling = SamplingParams(temperature=0.0)
    return Request(
        request_id=name,
        prompt=prompt,
        max_tokens=n_tokens,
        sampling=sampling,
        ignore_eos=True,
        priority=BATCH_PRIORITY,
    )


class Context(FakeBackend):
    def __init__(self) -> None:
        super().__init__(n_ctx=256, n_cells=4096, n_sequences=32)
        self.n_threads = 0
        self.is_closed = False

    def set_threads(self, n_threads: int) -> None:
        self.n_threads = n_threads

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Bench:
    """A batch engine, the contexts that it has made, and a clock that is set by hand."""

    has_memory: bool = True
    contexts: list[Context] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    record: Record = field(default_factory=Record)
    now_s: float = 0.0
    batches: BatchEngine = field(init=False)

    def __post_init__(self) -> None:
        def new_engine(backend: Backend) -> Engine:
            return Engine(backend, self.record)

        self.batches = BatchEngine(self._new_context, new_engine, self.notices.append, lambda: self.now_s)

    def _new_context(self) -> Backend:
        if not self.has_memory:
            raise EngineError("it needs 9 MiB.", "Close programs.")
        self.contexts.append(Context())
        return self.contexts[-1]

    def run(self) -> None:
        while not self.batches.is_idle:
            self.batches.step()


def test_the_context_is_made_for_the_first_request_and_given_back_after_the_last() -> None:
    bench = Bench()
    assert (bench.batches.is_idle, bench.contexts) == (True, [])
    for name in "ab":
        assert bench.batches.takes(request(name))
    bench.run()
    assert {name: bench.record.finished[name].usage.n_output_tokens for name in "ab"} == {"a": 5, "b": 5}
    bench.batches.close()
    assert [context.is_closed for context in bench.contexts] == [True]
    assert bench.batches.occupancy.n_cells == 0
    assert bench.batches.takes(request("c"))
    bench.run()
    assert len(bench.contexts) == 2
    assert bench.record.text["c"] == bench.record.text["a"]


@pytest.mark.parametrize(
    "change",
    [
        lambda wanted: replace(wanted, priority=0),
        lambda wanted: replace(wanted, priority=-1),  # prefills the next turn of a chat
        lambda wanted: replace(wanted, echo=True),  # whose scores must not depend on others
    ],
)
def test_other_requests_are_left_to_the_engine_of_chats(change: Callable[[Request], Request]) -> None:
    bench = Bench()
    assert not bench.batches.takes(change(request("a")))
    assert not bench.contexts


def test_without_memory_requests_are_left_to_others_with_one_notice_and_memory_is_looked_for_again() -> None:
    bench = Bench(has_memory=False)
    assert [bench.batches.takes(request(name)) for name in "ab"] == [False, False]
    assert bench.notices == ["Batches are answered in the context of other requests, which is slower: it needs 9 MiB."]
    bench.now_s = RETRY_S
    assert not bench.batches.takes(request("c"))
    bench.has_memory = True
    assert not bench.batches.takes(request("d"))  # not looked for at each request
    bench.now_s = 2 * RETRY_S
    assert bench.batches.takes(request("e"))
    assert len(bench.notices) == 1


def test_a_new_context_computes_with_the_threads_that_others_left() -> None:
    bench = Bench()
    bench.batches.set_threads(3)
    bench.batches.takes(request("a"))
    assert bench.contexts[0].n_threads == 3
    bench.batches.set_threads(1)
    assert bench.contexts[0].n_threads == 1


def test_an_aborted_request_ends_while_the_batch_pauses() -> None:
    bench = Bench()
    for name in "ab":
        bench.batches.takes(request(name, 100))
    bench.batches.step()
    bench.batches.abort("a")
    bench.batches.end_aborted()
    assert [*bench.record.finished] == ["a"]
    assert bench.batches.occupancy.n_running == 1


def test_a_closed_batch_ends_its_requests() -> None:
    bench = Bench()
    bench.batches.takes(request("a", 100))
    bench.batches.step()
    bench.batches.close()
    assert bench.record.finished["a"].reason == "aborted"
    assert bench.batches.is_idle
