from __future__ import annotations

import pytest

from app.library.machine_fit.planning import local_planning_context, planning_context
from app.settings.settings import Settings
from offload.devices.machine import Machine
from offload.footprint.model import PlannedModel
from offload.placement.assessment import FitLevel
from quantizer.gguf.tensor_types import file_type_named
from quantizer.system.errors import UsageError
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of


def model(name: str, file_type: str) -> PlannedModel:
    header = header_of(name)
    return PlannedModel(header, header.tensors).quantized(file_type_named(file_type))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file_type", "machine", "verdict"),
    [
        ("llama-3.1-8b", "Q4_K_M", "RTX 3060 12 GB, 32 GB RAM", FitLevel.FITS),
        ("qwen3-30b-a3b", "Q4_K_M", "RTX 3060 12 GB, 32 GB RAM", FitLevel.PARTIAL),
        ("qwen3-30b-a3b", "Q4_K_M", "container of 4 GiB", FitLevel.WONT_RUN),
    ],
)
def test_a_short_verdict_is_that_of_the_whole_plan(name: str, file_type: str, machine: str, verdict: FitLevel) -> None:
    here, candidate = planning_context(Settings(), MACHINES[machine]), model(name, file_type)
    fit, plan = here.fit(candidate), here.plan(candidate)
    assert fit.verdict == verdict == plan.assessment.verdict
    assert fit.decode_tps == (
        None if plan.assessment.decode_tps is None else pytest.approx(plan.assessment.decode_tps, abs=1e-3)
    )
    assert fit.total_bytes == plan.assessment.profile.total_bytes


def test_settings_say_how_a_model_is_wanted() -> None:
    machine, candidate = MACHINES["processor only, 32 GB"], model("qwen3-0.6b", "Q8_0")
    short, long = (planning_context(Settings(ctx=n_ctx, parallel=1), machine) for n_ctx in (2048, 32768))
    assert short.best_assessment(candidate).profile.run_config.n_ctx == 2048
    assert long.best_assessment(candidate).profile.run_config.n_ctx == 32768
    assert short.fit(candidate).total_bytes < long.fit(candidate).total_bytes
    with pytest.raises(UsageError):
        planning_context(Settings(kv_type="q4_9"), machine)


def test_without_gpus_by_the_settings_plans_are_for_the_processor() -> None:
    machine = MACHINES["RTX 3060 12 GB, 32 GB RAM"]
    with_gpu, without = (local_planning_context(Settings(gpu=gpu), machine).machine for gpu in (True, False))
    assert (with_gpu, without) == (machine, Machine(machine.host))
