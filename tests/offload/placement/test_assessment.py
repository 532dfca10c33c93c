"""What a plan gives up, and for what."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from offload.devices.machine import Machine
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.assessment import FitLevel, assess, choose
from offload.speed.cost_model import expected_rates
from quantizer.gguf.tensor_types import file_type_named
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

GIB = 1 << 30
WANTED = RunConfig(n_ctx=8192, n_cells=16_384, n_sequences=8, depth=2048)
MACHINE = MACHINES["RTX 3060 12 GB, 32 GB RAM"]
RATES = expected_rates(MACHINE)


def model(name: str, file_type: str) -> PlannedModel:
    header = header_of(name)
    return PlannedModel(header, header.tensors).quantized(file_type_named(file_type))


def with_card(n_bytes: int) -> Machine:
    return Machine(MACHINE.host, (replace(MACHINE.gpus[0], free_bytes=n_bytes),))


def test_nothing_is_given_up_where_all_fits() -> None:
    found = choose(model("llama-3.1-8b", "Q4_K_M"), WANTED, MACHINE, RATES)
    assert found.profile.run_config == WANTED


def test_a_smaller_micro_batch_is_chosen_only_where_everything_then_fits_on_the_gpu() -> None:
    planned, wanted = model("gemma-2-9b", "Q6_K"), replace(WANTED, n_cells=WANTED.n_ctx)
    sizes = range(9 * GIB, 12 * GIB, 64 << 20)
    smaller = [
        found
        for size in sizes
        if (found := choose(planned, wanted, with_card(size), RATES)).profile.run_config.n_ubatch < 512
    ]
    assert smaller
    assert all(found.verdict in (FitLevel.FITS, FitLevel.TIGHT) for found in smaller)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-2-9b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_a_plan_is_never_slower_with_more_memory_on_the_gpu(name: str) -> None:
    planned = model(name, "Q4_K_M")
    times_s = []
    for n_bytes in range(0, 24 * GIB, 3 * GIB // 4):
        found = choose(planned, WANTED, with_card(n_bytes), RATES)
        times_s.append(found.placement.token_s if found.placement else float("inf"))
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(times_s))


def test_attention_is_not_fused_where_the_processor_has_to_attend() -> None:
    found = choose(model("llama-3.1-8b", "Q4_K_M"), WANTED, with_card(0), RATES)
    assert not found.profile.run_config.is_fused
    quantized = replace(WANTED, kv_types=KvTypes("q8_0", "q8_0"))
    assert choose(model("llama-3.1-8b", "Q4_K_M"), quantized, with_card(0), RATES).profile.run_config.is_fused


def test_the_cache_stays_with_the_processor_where_that_is_faster_than_leaving_layers_there() -> None:
    planned, setting = model("gemma-2-9b", "Q8_0"), replace(WANTED, n_cells=8192, is_fused=False)
    found = assess(planned.profile(setting), MACHINE, RATES)
    assert found.placement is not None
    assert found.placement.has_cache_on_host
    card, host = found.shares
    assert (card.cache_bytes, host.cache_bytes) == (0, found.profile.cache_bytes)
    shallow = assess(planned.profile(replace(setting, n_ctx=2048, n_cells=2048)), MACHINE, RATES)
    assert shallow.placement is not None
    assert not shallow.placement.has_cache_on_host


def test_a_model_that_never_fits_is_reported_with_its_smallest_need() -> None:
    found = choose(model("qwen3-30b-a3b", "Q4_K_M"), WANTED, MACHINES["container of 4 GiB"], RATES)
    assert found.verdict is FitLevel.WONT_RUN
    assert found.profile.run_config.n_cells == WANTED.n_ctx
