from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from app.engine.backend import MemoryShortError
from app.engine.load.planner import LoadAttempt, LoadPlanner, load_within_memory
from app.engine.protocol.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.devices.machine import DeviceSpeed, Machine
from offload.footprint.model import PlannedModel
from offload.footprint.profile import RunConfig
from offload.placement.actual_usage import ExcessUsage
from offload.placement.load_parameters import ON_HOST, LoadParameters
from quantizer.system.errors import EngineError
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

GIB = 1 << 30
CARD = MACHINES["RTX 3060 12 GB, 32 GB RAM"]
WITHOUT_CARD = Machine(CARD.host)
CONFIG = EngineConfig(n_ctx=8192, n_cells=8192, kv_type="f16", n_sequences=1)
TUNED = RuntimeSettings(n_threads=7, flash_attention=False, extra_buffers=True, n_ubatch=128)


def dry_run(_setting: RunConfig, parameters: LoadParameters) -> Mapping[str, int]:
    return dict.fromkeys((*parameters.devices, "CPU"), 64 << 20)


def planner(machine: Machine, excess: ExcessUsage = ExcessUsage()) -> LoadPlanner:  # noqa: B008
    header = header_of("llama-3.1-8b")
    return LoadPlanner(PlannedModel(header, header.tensors), machine, dry_run, excess)


class Loader:
    """A loader that fails for memory `n_failures` times, and records the attempts."""

    def __init__(self, n_failures: int) -> None:
        self.n_failures = n_failures
        self.attempts: list[LoadAttempt] = []

    def __call__(self, attempt: LoadAttempt) -> str:
        self.attempts.append(attempt)
        if len(self.attempts) <= self.n_failures:
            raise MemoryShortError("llama.cpp cannot load m.gguf: unable to allocate CUDA0 buffer", "See.")
        return "loaded"


def test_without_a_gpu_the_measured_settings_are_unchanged_without_a_dry_run() -> None:
    attempt = planner(WITHOUT_CARD).attempt(CONFIG, TUNED)
    assert (attempt.config, attempt.setting, attempt.parameters) == (CONFIG, TUNED, replace(ON_HOST, n_ubatch=128))
    assert attempt.plan.run_config.n_cells == CONFIG.n_cells


def test_a_long_context_gets_a_smaller_micro_batch_where_its_scores_would_take_too_much_memory() -> None:
    setting, config = replace(TUNED, n_ubatch=512), replace(CONFIG, n_ctx=32768, n_cells=32768)
    attempt = planner(WITHOUT_CARD).attempt(config, setting)
    assert attempt.setting == replace(setting, n_ubatch=128)
    assert attempt.plan.run_config.n_ubatch == 128
    fused = planner(WITHOUT_CARD).attempt(config, replace(setting, flash_attention=True))
    assert fused.setting.n_ubatch == 512


def test_a_gpu_that_is_slower_than_the_processor_leaves_the_measured_settings_unchanged() -> None:
    slow = Machine(CARD.host, (replace(CARD.gpus[0], speed=DeviceSpeed(1e9, 20e9)),))
    attempt = planner(slow).attempt(CONFIG, TUNED)
    assert (attempt.config, attempt.setting, attempt.parameters) == (CONFIG, TUNED, replace(ON_HOST, n_ubatch=128))
    assert "CUDA0 gets no layers" in attempt.plan.warnings[0]


def test_with_a_gpu_layers_go_there_as_planned() -> None:
    attempt = planner(CARD).attempt(CONFIG, replace(TUNED, flash_attention=True))
    assert attempt.parameters.devices == ("CUDA0",)
    assert attempt.parameters.n_gpu_layers == 33
    assert attempt.is_all_on_gpus
    assert attempt.setting.flash_attention
    assert {share.compute_bytes for share in attempt.shares} == {64 << 20}


def test_manually_placed_layers_go_to_their_gpu_until_memory_is_too_small() -> None:
    requested = replace(CONFIG, gpu_layers={"CUDA0": 12})
    attempt = planner(CARD).attempt(requested, TUNED)
    assert attempt.parameters.n_gpu_layers == 12
    smaller = planner(CARD).smaller(attempt, may_shorten=False)
    assert smaller is not None
    assert smaller.config.gpu_layers is None


def test_the_excess_of_the_last_load_makes_the_next_one_smaller() -> None:
    small = Machine(CARD.host, (replace(CARD.gpus[0], free_bytes=6 * GIB),))
    before = planner(small).attempt(CONFIG, TUNED).parameters.n_gpu_layers
    after = planner(small, ExcessUsage(gpu_bytes=2 * GIB)).attempt(CONFIG, TUNED).parameters.n_gpu_layers
    assert 0 < after < before
    assert not planner(small).attempt(CONFIG, TUNED).is_all_on_gpus


def test_a_gpu_with_less_memory_than_reported_gets_fewer_layers_with_a_notice() -> None:
    small = Machine(CARD.host, (replace(CARD.gpus[0], free_bytes=6 * GIB),))
    plans, load, notices = planner(small), Loader(1), list[str]()
    attempt = plans.attempt(CONFIG, TUNED)
    loaded, smaller = load_within_memory(plans, attempt, load, notices.append, may_shorten=False)
    assert loaded == "loaded"
    assert smaller.parameters.n_gpu_layers < attempt.parameters.n_gpu_layers
    assert smaller.config.n_ctx == CONFIG.n_ctx
    assert f"{smaller.parameters.n_gpu_layers} of 33 layers fit" in notices[0]


def test_a_second_failure_is_an_error_with_the_numbers() -> None:
    plans, load = planner(CARD), Loader(2)
    with pytest.raises(EngineError, match=r"Not enough memory: the model needs .* GiB on CUDA0 and may use .* GiB"):
        load_within_memory(plans, plans.attempt(CONFIG, TUNED), load, lambda _: None, may_shorten=True)
    assert len(load.attempts) == 2


def test_without_a_gpu_an_automatic_context_is_shortened() -> None:
    plans, load, notices = planner(WITHOUT_CARD), Loader(1), list[str]()
    _, smaller = load_within_memory(plans, plans.attempt(CONFIG, TUNED), load, notices.append, may_shorten=True)
    assert (smaller.config.n_ctx, smaller.config.n_cells) == (4096, 4096)
    assert "a context of 4,096 tokens" in notices[0]


def test_a_requested_context_is_not_shortened() -> None:
    plans, load = planner(WITHOUT_CARD), Loader(1)
    with pytest.raises(EngineError, match="GiB on CPU"):
        load_within_memory(plans, plans.attempt(CONFIG, TUNED), load, lambda _: None, may_shorten=False)
    assert len(load.attempts) == 1


def test_a_context_that_is_not_shortened_keeps_its_length_for_one_answer_at_a_time() -> None:
    plans, load = planner(WITHOUT_CARD), Loader(1)
    several = replace(CONFIG, n_cells=16384, n_sequences=8)
    _, smaller = load_within_memory(plans, plans.attempt(several, TUNED), load, lambda _: None, may_shorten=False)
    assert (smaller.config.n_ctx, smaller.config.n_cells) == (8192, 8192)


def test_an_error_of_memory_repeats_nothing_of_what_llama_cpp_printed() -> None:
    plans, load = planner(WITHOUT_CARD), Loader(1)
    with pytest.raises(EngineError) as caught:
        load_within_memory(plans, plans.attempt(CONFIG, TUNED), load, lambda _: None, may_shorten=False)
    assert str(caught.value).startswith("Not enough memory: the model needs ")
    assert "llama.cpp takes more than was planned" in caught.value.cause, "the machine has more than the plan takes"
    assert "allocate" not in str(caught.value)
