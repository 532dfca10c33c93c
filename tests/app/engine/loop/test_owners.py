"""Holders of different keys share a model, and nothing that it has read."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.cache.state_store import StateStore
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.request import Request, SamplingParams
from app.engine.speculative.prompt_lookup import CrossRequestLookup
from tests.app.engine.recording import Record, run

PROMPT = "The words that only one of them knows. " * 12


class Shared(Record):
    """An engine over the fake model, and its events."""

    def __init__(self, store: StateStore | None = None) -> None:
        super().__init__()
        ticks = count()
        self.engine = Engine(FakeBackend(), self, store, clock=lambda: next(ticks) * 0.04)

    def submit(self, name: str, owner: str, prompt: str = PROMPT, n_tokens: int = 3) -> None:
        greedy = SamplingParams(temperature=0.0)
        request = Request(
            request_id=name, prompt=prompt, sampling=greedy, max_tokens=n_tokens, ignore_eos=True, owner=owner
        )
        self.engine.submit(request)

    def n_cached(self, name: str, owner: str) -> int:
        self.submit(name, owner)
        run(self.engine)
        return self.finished[name].usage.n_cached_tokens


def test_what_was_read_for_one_is_cached_for_that_one_only() -> None:
    shared = Shared()
    assert shared.n_cached("1", "alice") == 0
    assert shared.n_cached("2", "bob") == 0
    assert shared.n_cached("3", "") == 0
    assert all(shared.n_cached(f"again {owner}", owner) == len(PROMPT) - 1 for owner in ("alice", "bob", ""))


def test_prompts_of_two_that_arrive_together_are_both_read() -> None:
    shared = Shared()
    for owner in ("alice", "bob"):
        shared.submit(owner, owner)
    run(shared.engine)
    assert [shared.finished[owner].usage.n_cached_tokens for owner in ("alice", "bob")] == [0, 0]


def test_what_is_saved_for_one_is_no_others(tmp_path: Path) -> None:
    for name, owner, has_cached in (("1", "alice", False), ("2", "bob", False), ("3", "alice", True), ("4", "", False)):
        store = StateStore(tmp_path)
        shared = Shared(store)
        assert (shared.n_cached(name, owner) > 0) is has_cached
        while shared.engine.save_idle_sequence():
            pass
        store.close()


@pytest.mark.slow
@given(st.lists(st.sampled_from(["alice", "bob", "carol"]), max_size=12))
def test_drafts_come_from_answers_of_the_same_owner(owners: list[str]) -> None:
    shared = Shared()
    for number, owner in enumerate(owners):
        shared.submit(str(number), owner, f"{owner} {number}", 8)
    run(shared.engine)
    lookup = next(each for each in shared.engine._drafter._sources if isinstance(each, CrossRequestLookup))
    assert set(lookup._indexes) == set(owners)
    n_texts = {owner: sum(map(len, indexes)) for owner, indexes in lookup._indexes.items()}
    assert all(n_texts[owner] < 40 * owners.count(owner) for owner in n_texts)
