from __future__ import annotations

from collections.abc import AsyncGenerator

from app.bench.client import BenchClient
from app.bench.measurement import Figure, Measurement, Unmeasured
from app.bench.workloads import WORKLOADS, Bench, RandomText, run_workloads
from app.protocol.errors import ServiceError
from tests.app.running import RunningService


async def _fails_midway(bench: Bench) -> AsyncGenerator[Figure, None]:
    yield Measurement("w", "first", "s", (1.0,))
    raise ServiceError("It fell over.", "Get up.")


async def _succeeds(bench: Bench) -> AsyncGenerator[Figure, None]:
    yield Measurement("v", "only", "s", (1.0,))


async def test_work_that_fails_keeps_what_it_measured_and_lets_the_rest_go_on() -> None:
    told: list[Figure] = []
    bench = Bench(BenchClient("http://nobody"), RandomText(0), 1)
    found = await run_workloads({"w": _fails_midway, "v": _succeeds}, ["w", "v"], bench, told.append)
    assert [(item.work, item.case) for item in found] == [("w", "first"), ("w", ""), ("v", "only")]
    assert isinstance(found[1], Unmeasured)
    assert found[1].reason == "It fell over. Get up."
    assert told == found


async def test_a_case_that_does_not_fit_the_context_is_left_out_and_named(service: RunningService) -> None:
    async with BenchClient(service.url, "tiny") as client:
        bench = Bench(client, RandomText(0), n_runs=2, n_ctx=700)
        found = await run_workloads(WORKLOADS, ["prefill"], bench, lambda _figure: None)
    fits, too_long = found
    assert isinstance(fits, Measurement)
    assert (fits.case, fits.unit, len(fits.samples)) == ("512 tokens", "tok/s", 2)
    assert too_long == Unmeasured("prefill", "2000 tokens", "The context has 700 tokens.")


def test_a_prompt_may_come_out_longer_than_it_was_cut_and_has_room_for_that() -> None:
    bench = Bench(BenchClient("http://nobody"), RandomText(0), n_runs=1, n_ctx=2048)
    assert bench.shortage("prefill", "", 2000) is not None  # it was read as 2,061 tokens
    assert bench.shortage("decode", "", 1864) is None


def test_prompts_of_several_depths_share_a_beginning_and_end_differently() -> None:
    prose = RandomText(0)
    prose.tokens_per_word = 2.0
    document = prose.tokens(200)
    assert document.startswith(prose.beginning(document, 100))
    assert len(prose.beginning(document, 100).split()) == 50
    assert prose.beginning(document, 0) == ""
    assert prose.sentence() != prose.sentence()
