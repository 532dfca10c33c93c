from __future__ import annotations

import random
from pathlib import Path

import pytest

from app.engine.cache.state_store import StateStore
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.request import Request, SamplingParams
from app.engine.speculative.step_cost import StepCost

GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.parametrize(("seed", "n_window"), [(0, 0), (1, 0), (2, 0), (0, 9), (1, 60)])
def test_tree_slots_and_cells_agree_after_each_of_1000_random_steps(tmp_path: Path, seed: int, n_window: int) -> None:
    chance, store = random.Random(seed), StateStore(tmp_path)
    backend = FakeBackend(n_ctx=160, n_cells=320, n_batch=48, n_window=n_window)
    engine = Engine(backend, lambda _event: None, store, StepCost({1: 1.0, 64: 1.01}))
    documents = ["".join(chance.choices("abc ", k=150)) for _ in range(4)]
    for step in range(1000):
        if chance.random() < 0.15:
            prompt = chance.choice(documents)[: chance.randint(1, 150)] + chance.choice("abc")
            n_tokens = chance.randrange(40)
            engine.submit(Request(request_id=str(step), prompt=prompt, sampling=GREEDY, max_tokens=n_tokens))
        if chance.random() < 0.1:
            engine.abort(str(chance.randint(max(0, step - 30), step)))
        if chance.random() < 0.05:
            engine.save_idle_sequence()
        engine.step()
        engine.check_integrity()
        # what a window forgot cannot be shared, so equal tokens may lie twice in the cells
        assert n_window or engine.occupancy.n_cells_used == backend.n_cells_used
    assert engine.counters.n_cached_tokens > (500 if n_window else 1000)
    assert engine.counters.n_accepted_tokens > 100
    engine.close()
    engine.check_integrity()
    assert engine.occupancy.n_running == engine.occupancy.n_waiting == 0
    store.close()
