from __future__ import annotations

from dataclasses import dataclass

from app.engine.fake import FakeBackend
from app.engine.loop.sequence import Sequence
from app.engine.loop.slots import TURN_S, AdapterScheduler
from app.engine.request import AdapterSet, Request, SamplingParams
from app.engine.speculative.acceptance import Acceptance

STYLE: AdapterSet = (("style", 1.0),)
FACTS: AdapterSet = (("facts", 1.0),)


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def sequence(arrival: int, adapters: AdapterSet, priority: int = 0) -> Sequence:
    request = Request(request_id=str(arrival), prompt="x", priority=priority)
    sampler = FakeBackend().new_sampler(SamplingParams(), ignore_eos=False)
    return Sequence(request, arrival, [1], 1, 9, sampler, Acceptance(), 0.0, adapters=adapters)


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
