from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.service.jobs.arguments import Resource
from app.service.jobs.manager import LIMITS, startable

NETWORK: frozenset[Resource] = frozenset({"network"})
MACHINE: frozenset[Resource] = frozenset({"machine"})
slots = st.sampled_from([NETWORK, MACHINE, NETWORK | MACHINE])


@given(st.lists(slots), st.lists(slots, max_size=3))
def test_jobs_start_within_the_limits_and_none_overtakes(
    wanted: list[frozenset[Resource]], running: list[frozenset[Resource]]
) -> None:
    waiting = [(str(number), each) for number, each in enumerate(wanted)]
    started = startable(waiting, running)
    assert started == sorted(started, key=int)
    before = Counter(slot for each in running for slot in each)
    after = before + Counter(slot for number in started for slot in wanted[int(number)])
    assert all(after[slot] <= max(LIMITS[slot], before[slot]) for slot in LIMITS)
    for kind in (NETWORK, MACHINE, NETWORK | MACHINE):
        in_line = [number for number, each in waiting if each == kind]
        n_started = sum(number in started for number in in_line)
        assert [number for number in in_line if number in started] == in_line[:n_started]


@given(st.lists(slots, min_size=1))
def test_where_nothing_runs_the_first_one_starts(wanted: list[frozenset[Resource]]) -> None:
    assert startable([(str(number), each) for number, each in enumerate(wanted)], [])[0] == "0"


def test_a_download_does_not_wait_for_a_conversion_and_two_run_at_once() -> None:
    waiting = [("a", NETWORK), ("b", MACHINE), ("c", NETWORK), ("d", NETWORK), ("e", MACHINE)]
    assert startable(waiting, [MACHINE]) == ["a", "c"]


def test_a_job_that_needs_everything_is_not_starved_by_later_ones() -> None:
    waiting = [("both", NETWORK | MACHINE), ("a", NETWORK), ("b", NETWORK), ("c", MACHINE)]
    assert startable(waiting, [MACHINE]) == ["a"]
