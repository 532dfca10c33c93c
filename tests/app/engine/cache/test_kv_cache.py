from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.backend import Chunk, State
from app.engine.cache.kv_cache import MIN_FORGOTTEN_CELLS, KVCacheManager
from app.engine.cache.state_store import StateStore
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine, Event
from app.engine.messages import Finished
from app.engine.request import IN_MEMORY, Request, SamplingParams
from app.engine.speculative.cost_model import StepCost

GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (0, {}),
        (1, {}),
        (2, {}),
        (0, {"n_window": 9}),
        (1, {"n_window": 60}),
        (0, {"supports_truncation": False}),
        (1, {"supports_truncation": False}),
        (0, {"supports_truncation": False, "has_attention": False}),
    ],
)
def test_tree_slots_and_cells_agree_after_each_of_500_random_steps(
    tmp_path: Path, seed: int, kind: dict[str, Any]
) -> None:
    store = StateStore(tmp_path)
    backend = FakeBackend(n_ctx=160, n_cells=320, n_batch=48, **kind)
    engine = Engine(backend, lambda _event: None, store, StepCost({1: 1.0, 64: 1.01}))
    for _ in random_steps(engine, seed, 500):
        # what a window forgot and what has states cannot be shared, so equal tokens may lie twice in the cells
        assert kind or engine.occupancy.n_cells_used == backend.n_cells_used
    assert engine.counters.n_cached_tokens > (250 if kind else 500)
    assert backend.facts.truncation.has_states or engine.counters.n_accepted_tokens > 50
    engine.close()
    engine.check_integrity()
    assert engine.occupancy.n_running == engine.occupancy.n_waiting == 0
    store.close()


def test_steps_at_once_leave_room_for_tokens_that_a_rejected_draft_took_with_it(tmp_path: Path) -> None:
    """A clock whose steps last long now and then makes drafts pay in one step and several steps at once in the next."""
    jumps, now_s = random.Random(97 + 999), 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += jumps.choice((0.00001, 0.02 if jumps.random() < 0.2 else 0.0001))
        return now_s

    store = StateStore(tmp_path)
    backend = FakeBackend(n_ctx=160, n_cells=320, n_batch=48, supports_truncation=False, has_attention=False)
    costs = StepCost({1: 1.0, 2: 1.2, 64: 40.0})
    engine = Engine(backend, lambda _event: None, store, costs, clock=clock)
    assert sum(1 for _ in random_steps(engine, 97, 100)) == 100
    store.close()


def random_steps(engine: Engine, seed: int, n_steps: int) -> Iterator[int]:
    """Step `engine` with random requests, aborts and deleted chats, and check its integrity after each step."""
    chance = random.Random(seed)
    documents = ["".join(chance.choices("abc ", k=150)) for _ in range(4)]
    for step in range(n_steps):
        if chance.random() < 0.15:
            prompt = chance.choice(documents)[: chance.randint(1, 150)] + chance.choice("abc")
            n_tokens = chance.randrange(40)
            branches = (chance.randint(0, len(prompt)),) if chance.random() < 0.5 else ()
            engine.submit(
                Request(
                    request_id=str(step),
                    prompt=prompt,
                    sampling=GREEDY,
                    max_tokens=n_tokens,
                    branches=branches,
                    conversation=chance.choice(("", "one", "two", IN_MEMORY)),
                )
            )
        if chance.random() < 0.01:
            engine.forget(("one",))
        if chance.random() < 0.1:
            engine.abort(str(chance.randint(max(0, step - 30), step)))
        if chance.random() < 0.05:
            engine.save_idle_sequence()
        engine.step()
        engine.check_integrity()
        yield step


@pytest.mark.parametrize(
    "kind",
    [{}, {"n_window": 60}, {"supports_truncation": False}, {"supports_truncation": False, "has_attention": False}],
)
def test_a_forgotten_conversation_is_neither_cached_nor_saved_and_others_are(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    store = StateStore(tmp_path)
    events: list[Event] = []
    engine = Engine(FakeBackend(n_ctx=400, n_cells=2000, **kind), events.append, store, StepCost({1: 1.0}))
    system = "system " * 12
    prompts = {name: f"{system}{name} asks " + f"{name} something " * 8 for name in ("ann", "bob")}

    def ask(prompt: str, conversation: str) -> int:
        """Return how many tokens of the prompt were in the cache."""
        branches = (len(system),)
        engine.submit(
            Request(request_id="a", prompt=prompt, max_tokens=0, conversation=conversation, branches=branches)
        )
        while not engine.is_idle:
            engine.step()
        ended = events[-1]
        assert isinstance(ended, Finished)
        return ended.usage.n_cached_tokens

    for name, prompt in prompts.items():
        ask(prompt, name)
    while engine.save_idle_sequence():
        pass
    engine.forget(("ann",))
    engine.check_integrity()
    cached = {name: ask(f"{prompt}and more", "") for name, prompt in prompts.items()}
    assert cached["ann"] <= len(system) < cached["bob"]
    engine.forget(("ann",))
    store.close()
    assert {path.name.partition("-")[2] for path in tmp_path.iterdir()} - {"none"} == {"bob"}


def test_an_answer_of_a_forgotten_conversation_ends_and_leaves_nothing(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    engine = Engine(FakeBackend(n_ctx=400, n_cells=2000), lambda _event: None, store, StepCost({1: 1.0}))
    request = Request(request_id="a", prompt="long " * 40, sampling=GREEDY, max_tokens=9, conversation="ann")
    engine.submit(request)
    engine.step()
    engine.forget(("ann",))
    while not engine.is_idle:
        engine.step()
    engine.check_integrity()
    assert engine.occupancy.n_cells_used == 0
    assert not engine.save_idle_sequence()
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_a_request_without_a_conversation_leaves_a_continued_sequence_to_its_own(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    engine = Engine(FakeBackend(n_ctx=400, n_cells=2000), lambda _event: None, store, StepCost({1: 1.0}))
    for prompt, conversation in (("long " * 20, "ann"), ("long " * 40, "")):
        engine.submit(Request(request_id="a", prompt=prompt, sampling=GREEDY, max_tokens=0, conversation=conversation))
        while not engine.is_idle:
            engine.step()
    engine.forget(("ann",))
    assert engine.occupancy.n_cells_used == 0
    store.close()


class HoldsAll(FakeBackend):
    """Forgets nothing by itself, and everything where it has no cells for a window."""

    has_cells = True

    def _forget_all_outside_windows(self) -> None:
        pass

    def restore_checkpoint(self, sequence_id: int, source_id: int | None, n_tokens: int, checkpoint: State) -> bool:
        if not self.has_cells:
            self.truncate(sequence_id, 0)
        return self.has_cells and super().restore_checkpoint(sequence_id, source_id, n_tokens, checkpoint)


def computed(backend: FakeBackend, n_tokens: int) -> tuple[KVCacheManager, int]:
    cache = KVCacheManager(backend)
    sequence_id = cache.allocate([*range(n_tokens)]).sequence_id
    tokens = [index % 7 for index in range(n_tokens)]
    backend.decode([Chunk(sequence_id, 0, tokens, 1)])
    cache.record_computed(sequence_id, tokens)
    return cache, sequence_id


@pytest.mark.parametrize("n_window", [20, 300])
def test_what_a_window_left_is_forgotten_once_it_is_as_long_as_the_window(n_window: int) -> None:
    n_most = n_window + max(n_window, MIN_FORGOTTEN_CELLS)
    for n_tokens, first_held in ((n_most - 1, 0), (n_most, n_most - n_window)):
        backend = HoldsAll(n_batch=1024, n_window=n_window)
        cache, sequence_id = computed(backend, n_tokens)
        assert cache.narrow(sequence_id) == n_tokens
        assert backend.first_held(sequence_id) == first_held


def test_nothing_is_forgotten_where_attention_skips_it() -> None:
    backend = HoldsAll(n_batch=1024, n_window=20)
    backend.facts = replace(backend.facts, passes_over_cells=False)
    cache, sequence_id = computed(backend, 900)
    assert cache.narrow(sequence_id) == 900
    assert backend.first_held(sequence_id) == 0


def test_a_sequence_without_cells_for_its_window_begins_anew() -> None:
    backend = HoldsAll(n_batch=1024, n_window=20)
    backend.has_cells = False
    cache, sequence_id = computed(backend, 900)
    assert cache.narrow(sequence_id) == 0
    assert cache.n_cells_used == 0


def test_a_copy_gets_cells_of_its_own_for_its_window_since_shared_ones_are_never_overwritten() -> None:
    backend = HoldsAll(n_batch=1024, n_window=20)
    backend.facts = replace(backend.facts, passes_over_cells=False)
    cache, sequence_id = computed(backend, 900)
    copy = cache.allocate([*(index % 7 for index in range(900)), 1])
    assert (copy.n_cached, backend.first_held(sequence_id), backend.first_held(copy.sequence_id)) == (900, 0, 880)
    assert cache.n_cells_used == 900
