from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.backend import Chunk
from app.engine.cache.state_store import StateStore
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.loop.scheduler import TURN_S, AdapterScheduler
from app.engine.loop.sequence import Sequence
from app.engine.request import Adapter, AdapterSet, Request, SamplingParams, adapter_set
from tests.app.engine.recording import Record, run
from tests.app.engine.sequences import new_sequence

STYLE: AdapterSet = (("style", 1.0),)
FACTS: AdapterSet = (("facts", 1.0),)


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def sequence(arrival: int, adapters: AdapterSet, priority: int = 0) -> Sequence:
    return new_sequence(arrival=arrival, adapters=adapters, priority=priority)


def test_a_batch_holds_sequences_of_one_set_and_all_of_them() -> None:
    running = [sequence(1, STYLE), sequence(2, ()), sequence(3, STYLE)]
    assert AdapterScheduler(Clock()).next(running) == [running[0], running[2]]
    assert AdapterScheduler(Clock()).next([]) == []


def test_a_turn_lasts_and_the_set_that_waited_longest_is_next() -> None:
    clock = Clock()
    scheduler = AdapterScheduler(clock)
    running = [sequence(1, ()), sequence(2, STYLE), sequence(3, FACTS)]
    seen = []
    for _ in range(6):
        seen.append(scheduler.next(running)[0].arrival)
        clock.now_s += TURN_S / 3
        seen.append(scheduler.next(running)[0].arrival)
        clock.now_s += TURN_S
    assert seen == [1, 1, 2, 2, 3, 3] * 2


def test_a_turn_ends_with_its_last_sequence_and_lasts_without_another_set() -> None:
    clock = Clock()
    scheduler = AdapterScheduler(clock)
    first, second = sequence(1, ()), sequence(2, STYLE)
    assert scheduler.next([first, second]) == [first]
    assert scheduler.next([second]) == [second]
    clock.now_s += 10 * TURN_S
    assert scheduler.next([second]) == [second]
    assert scheduler.next([second, first]) == [first]


def test_the_best_ranked_new_set_is_first() -> None:
    assert AdapterScheduler(Clock()).next([sequence(1, ()), sequence(2, STYLE, priority=1)])[0].arrival == 2


KNOWN = (Adapter("style", "k2"), Adapter("facts", "k1"))
SETS: list[tuple[tuple[int | str, float], ...] | None] = [(), (("style", 1.0),), ((1, 0.5),), None]

Lora = tuple[tuple[int | str, float], ...] | None


class Steered(Record):
    """An engine over the fake model with two adapters, and its events."""

    def __init__(self, store: StateStore | None = None, **limits: int | bool) -> None:
        super().__init__()
        backend = FakeBackend(adapters=KNOWN, **limits)  # type: ignore[arg-type]
        ticks = count()
        self.engine = Engine(backend, self, store, clock=lambda: next(ticks) * 0.04)

    def submit(self, name: str, prompt: str, n_tokens: int, lora: Lora) -> None:
        self.engine.submit(_request(name, prompt, n_tokens, lora))

    def run(self) -> None:
        run(self.engine)

    def ask(self, name: str, prompt: str, lora: Lora) -> int:
        """Answer one request and return how many tokens of its prompt were cached."""
        self.submit(name, prompt, 3, lora)
        self.run()
        return self.finished[name].usage.n_cached_tokens


def _request(name: str, prompt: str, n_tokens: int, lora: Lora) -> Request:
    greedy = SamplingParams(temperature=0.0)
    return Request(request_id=name, prompt=prompt, sampling=greedy, max_tokens=n_tokens, ignore_eos=True, lora=lora)


def answer_alone(prompt: str, n_tokens: int, lora: Lora) -> str:
    """Return the model's answer under these adapters by itself: without engine, batch, cache reuse or drafts."""
    backend = FakeBackend(n_sequences=1, n_batch=4096)
    backend.set_adapters(adapter_set(KNOWN, lora))
    sampler = backend.new_sampler(SamplingParams(temperature=0.0), ignore_eos=True)
    new, output, n_computed = backend.tokenize(prompt, True, True), b"", 0
    for _ in range(n_tokens):
        backend.decode([Chunk(0, n_computed, new, 1)])
        n_computed += len(new)
        new = [sampler.sample(len(new) - 1)]
        output += backend.piece(new[0])
    return output.decode()


arrivals = st.lists(
    st.tuples(st.integers(0, 8), st.text("xy", min_size=1, max_size=40), st.integers(1, 25), st.sampled_from(SETS)),
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=50)
@given(arrivals, st.integers(1, 4), st.integers(4, 40), st.integers(100, 200), st.booleans())
def test_answers_under_mixed_adapters_equal_serial_ones_so_nothing_is_shared_between_sets(
    rows: list[tuple[int, str, int, Lora]], n_sequences: int, n_batch: int, n_cells: int, supports_truncation: bool
) -> None:
    steered = Steered(
        n_ctx=100, n_cells=n_cells, n_sequences=n_sequences, n_batch=n_batch, supports_truncation=supports_truncation
    )
    for index, (delay, prompt, n_tokens, lora) in enumerate(rows):
        for _ in range(delay):
            steered.engine.step()
        steered.submit(str(index), prompt, n_tokens, lora)
    steered.run()
    for index, (_, prompt, n_tokens, lora) in enumerate(rows):
        assert steered.text[str(index)] == answer_alone(prompt, n_tokens, lora)


def test_a_prompt_is_cached_for_its_own_adapters_only() -> None:
    steered = Steered()
    prompt = "p" * 200
    assert steered.ask("a", prompt, ()) == 0
    assert steered.ask("b", prompt, (("style", 1.0),)) == 0
    assert steered.ask("c", prompt, (("style", 0.5),)) == 0
    assert steered.ask("d", prompt, ((0, 1.0),)) == 199
    assert steered.ask("e", prompt, ((0, 0.0),)) == 199, "scale 0 is none"


def test_a_saved_state_is_restored_for_its_own_adapters_only(tmp_path: Path) -> None:
    prompt = "p" * 200
    for name, lora, n_cached in (("a", (), 0), ("b", (("facts", 1.0),), 0), ("c", ((1, 1.0),), 200), ("d", (), 200)):
        store = StateStore(tmp_path)
        steered = Steered(store)
        assert steered.ask(name, prompt + name, lora) == n_cached
        assert steered.text[name] == answer_alone(prompt + name, 3, lora)
        while steered.engine.save_idle_sequence():
            pass
        store.close()


def test_sets_take_turns_so_that_none_waits_for_another_to_end() -> None:
    steered = Steered(end_every=10**9)
    for name, lora in (("a", ()), ("b", (("style", 1.0),)), ("c", (("facts", 1.0),))):
        steered.submit(name, f"prompt {name}", 30, lora)
    for _ in range(30):
        steered.engine.step()
    assert {name: steered.order.count(name) >= 9 for name in "abc"} == dict.fromkeys("abc", True)


def test_an_unknown_adapter_fails_its_request() -> None:
    steered = Steered()
    steered.submit("a", "prompt", 3, (("other", 1.0),))
    assert steered.failed["a"].kind == "RequestError"
