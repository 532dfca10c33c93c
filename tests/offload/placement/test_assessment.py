"""What a plan gives up, and for what."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from app.library.hub.catalogue import read_catalogue
from offload.devices.machine import Device, DeviceKind, Machine
from offload.footprint.auxiliary_models import AuxiliaryModels, PlannedDraft
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.assessment import FitLevel, assess, choose
from offload.placement.load_parameters import load_parameters
from offload.plan import plan
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


@pytest.mark.slow
def test_a_smaller_micro_batch_is_chosen_only_where_a_turn_is_faster_by_it() -> None:
    planned, wanted = model("gemma-2-9b", "Q6_K"), replace(WANTED, n_cells=WANTED.n_ctx)
    sizes = range(9 * GIB, 12 * GIB, 64 << 20)
    found = {size: choose(planned, wanted, with_card(size), RATES) for size in sizes}
    smaller = {size: each for size, each in found.items() if each.profile.run_config.n_ubatch < 512}
    assert smaller
    for size, each in smaller.items():
        usual = assess(planned.profile(wanted), with_card(size), RATES)
        assert each.turn_s < usual.turn_s or each.verdict is FitLevel.FITS


def test_a_larger_micro_batch_is_chosen_where_a_gpu_fetches_for_each_and_not_where_all_is_there() -> None:
    planned = model("qwen3-30b-a3b", "Q4_K_M")
    wanted = replace(WANTED, n_outputs=planned.most_outputs(8))
    partly = choose(planned, wanted, with_card(8 * GIB), RATES)
    assert partly.placement.prompt_gpu == "CUDA0"
    assert partly.profile.run_config.n_ubatch > 512
    usual = assess(planned.profile(replace(wanted, n_cells=wanted.n_ctx)), with_card(8 * GIB), RATES)
    assert partly.speed.prefill_tps > 1.3 * usual.speed.prefill_tps
    assert partly.turn_s < usual.turn_s
    whole = choose(model("llama-3.1-8b", "Q4_K_M"), wanted, MACHINE, RATES)
    assert (whole.placement.prompt_gpu, whole.profile.run_config.n_ubatch) == ("", 512)


def test_a_larger_micro_batch_takes_the_memory_that_is_planned_for_it_and_a_draft_keeps_the_usual_one() -> None:
    planned = model("llama-3.1-8b", "Q4_K_M")
    usual, large = (planned.profile(replace(WANTED, n_ubatch=n, n_outputs=200)) for n in (512, 2048))
    assert large.inner_compute_bytes == 4 * usual.inner_compute_bytes
    assert large.compute_bytes < planned.profile(replace(WANTED, n_ubatch=2048)).compute_bytes
    draft = model("qwen3-0.6b", "Q8_0")
    drafting = replace(planned, auxiliary=AuxiliaryModels(draft=PlannedDraft("small", draft.header, draft.tensors)))
    found = choose(drafting, WANTED, with_card(4 * GIB), RATES)
    assert found.profile.run_config.n_ubatch <= 512


def test_the_runner_up_is_another_choice_and_no_better() -> None:
    found = choose(model("llama-3.1-8b", "Q4_K_M"), WANTED, with_card(3 * GIB), RATES)
    other = found.runner_up
    assert other is not None
    assert other.turn_s >= found.turn_s
    assert other.runner_up is None
    chosen, next_best = (
        (each.placement.n_on_gpus, each.placement.n_split, each.profile.run_config.n_ubatch) for each in (found, other)
    )
    assert chosen != next_best
    assert choose(model("llama-3.1-8b", "Q4_K_M"), WANTED, MACHINE, RATES).runner_up is None, "nothing was weighed"


def test_a_small_card_is_used_for_layers_or_for_prompts() -> None:
    """700 MiB of which a quarter GiB stays free, and a vocabulary of 152,000 tokens."""
    small = model("qwen3-0.6b", "Q8_0")
    card = replace(MACHINE.gpus[0], total_bytes=700 << 20, free_bytes=700 << 20)
    here = Machine(MACHINE.host, (card,))
    found = choose(small, replace(WANTED, n_outputs=small.most_outputs(8)), here, RATES)
    alone = choose(model("qwen3-0.6b", "Q8_0"), replace(WANTED, is_fused=False), Machine(MACHINE.host), RATES)
    assert found.placement.n_on_gpus or found.placement.prompt_gpu
    assert found.turn_s < alone.turn_s / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-2-9b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_a_plan_is_never_slower_with_more_memory_on_the_gpu(name: str) -> None:
    planned = model(name, "Q4_K_M")
    times_s = []
    for n_bytes in range(0, 24 * GIB, 3 * GIB // 4):
        found = choose(planned, WANTED, with_card(n_bytes), RATES)
        times_s.append(found.placement.turn_s if found.placement else float("inf"))
    # by more than what memory to spare is worth
    assert all(later <= earlier / 0.97 for earlier, later in pairwise(times_s))


def test_attention_is_not_fused_where_the_processor_has_to_attend() -> None:
    found = choose(model("llama-3.1-8b", "Q4_K_M"), WANTED, with_card(0), RATES)
    assert not found.profile.run_config.is_fused
    quantized = replace(WANTED, kv_types=KvTypes("q8_0", "q8_0"))
    assert choose(model("llama-3.1-8b", "Q4_K_M"), quantized, with_card(0), RATES).profile.run_config.is_fused


def test_the_cache_stays_with_the_processor_where_that_is_faster_than_leaving_layers_there() -> None:
    planned, setting = model("llama-2-7b", "Q4_K_M"), replace(WANTED, n_cells=8192, n_outputs=600, is_fused=False)
    found = assess(planned.profile(setting), with_card(5 * GIB), RATES)
    assert found.placement is not None
    assert found.placement.has_cache_on_host
    assert found.placement.prompt_gpu == "", "no weights are left to fetch"
    card, host = found.shares
    assert (card.cache_bytes, host.cache_bytes) == (0, found.profile.cache_bytes)
    shallow = assess(planned.profile(replace(setting, n_ctx=1024, n_cells=1024)), with_card(5 * GIB), RATES)
    assert shallow.placement is not None
    assert not shallow.placement.has_cache_on_host


def test_a_model_that_never_fits_is_reported_with_its_smallest_need() -> None:
    found = choose(model("qwen3-30b-a3b", "Q4_K_M"), WANTED, MACHINES["container of 4 GiB"], RATES)
    assert found.verdict is FitLevel.WONT_RUN
    assert found.profile.run_config.n_cells == WANTED.n_ctx


def gemma_4(file_type: str) -> PlannedModel:
    """Gemma 4 E4B, whose layers have embeddings of their own in one table: 2.15 GiB of 4.97 in Q4_K_M."""
    (found,) = (each for each in read_catalogue().models if each.name == "gemma-4-e4b")
    return found.outline().quantized(file_type_named(file_type))


def processor(free_gib: float, *gpus: Device) -> Machine:
    free_bytes = int(free_gib * GIB)
    host = Device(
        name="CPU", kind=DeviceKind.CPU, total_bytes=free_bytes, free_bytes=free_bytes, bytes_per_s=30e9, n_cores=4
    )
    return Machine(host, gpus)


def test_tables_stay_in_the_file_only_where_memory_is_short_for_them() -> None:
    planned, memory_gib = gemma_4("Q4_K_M"), (3.0, 4.0, 4.75, 5.25, 6.0, 7.0, 9.0)
    chosen = {}
    for free_gib in memory_gib:
        machine = processor(free_gib)
        found = plan(planned, RunConfig(), machine, expected_rates(machine), wants_remedies=False)
        chosen[free_gib] = found.assessment.profile.lazy_bytes, found.assessment.verdict
        assert any("stay in the file" in each for each in found.warnings) is (
            found.assessment.placement is not None and bool(found.assessment.profile.lazy_bytes)
        )
        if found.assessment.placement is not None:
            parameters = load_parameters(found.assessment.profile, machine, found.assessment.placement)
            assert parameters.has_lazy_tables is bool(found.assessment.profile.lazy_bytes)
    assert planned.lazy_bytes > 2 * GIB
    assert chosen[3.0][1] is FitLevel.WONT_RUN
    assert chosen[4.75] == chosen[5.25] == (planned.lazy_bytes, FitLevel.FITS)
    assert chosen[7.0] == chosen[9.0] == (0, FitLevel.FITS)


def test_what_stays_in_the_file_takes_no_memory_and_changes_no_speed() -> None:
    planned, machine = gemma_4("Q8_0"), processor(24)
    rates = expected_rates(machine)
    kept, lazy = (
        assess(planned.profile(replace(WANTED, has_lazy_tables=is_lazy)), machine, rates) for is_lazy in (False, True)
    )
    assert kept.profile.total_bytes - lazy.profile.total_bytes == planned.lazy_bytes
    assert lazy.speed == kept.speed


def test_a_table_beyond_4_gib_stays_in_the_file_with_memory_for_it_but_beside_no_gpu_that_shares_the_memory() -> None:
    planned, shared = (
        gemma_4("F16"),
        Device(name="iGPU", kind=DeviceKind.INTEGRATED, total_bytes=24 * GIB, free_bytes=0),
    )
    for machine, is_lazy in ((processor(24), True), (processor(24, shared), False)):
        found = plan(planned, RunConfig(), machine, expected_rates(machine), wants_remedies=False)
        assert bool(found.assessment.profile.lazy_bytes) is is_lazy


def test_a_model_without_such_a_table_is_never_planned_with_one() -> None:
    machine = processor(4)
    found = plan(model("llama-3.1-8b", "Q4_K_M"), RunConfig(), machine, expected_rates(machine), wants_remedies=False)
    assert found.run_config.has_lazy_tables is False
