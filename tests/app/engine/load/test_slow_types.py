from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.load.planner import LoadAttempt
from app.engine.load.slow_types import slow_type_notice
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import default_setting
from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from offload.footprint.model import PlannedModel, RunConfig
from offload.plan import plan
from offload.speed.cost_model import Rates, expected_rates
from offload.speed.type_costs import ProductCost, TypeCost, TypeTable
from quantizer.gguf.header import Field
from quantizer.gguf.tensor_types import FILE_TYPES, WEIGHT_TYPES
from tests.offload.model_outlines import header_of

HOST = Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=1 << 40, free_bytes=1 << 40, bytes_per_s=20e9, n_cores=2)
MACHINE = Machine(HOST)
SETTING = default_setting(2, has_gpu=False, extra_buffers_are_safe=True)


def table(**prompt_ns: float) -> TypeTable:
    """Answers read 20 GB a second in any type; a prompt takes 0.01 ns for a weight, or so many for those named."""
    types = {}
    for name, kind in WEIGHT_TYPES.items():
        one, many = (
            ProductCost(value, 0.0) for value in (kind.bits_per_weight / 160e9, prompt_ns.get(name, 0.01) * 1e-9)
        )
        types[name] = TypeCost(one, one, many, many)
    return TypeTable(types)


def noticed(file_type: str, rates: Rates, cache_dir: Path, key: str = "a") -> str:
    header = header_of("qwen3-0.6b")
    called = Field(type_id=4, value=FILE_TYPES[file_type].ftype_id, start=0, stop=0)
    header = replace(header, fields={**header.fields, "general.file_type": called})
    model = PlannedModel(header, tuple(header.tensors)).quantized(FILE_TYPES[file_type])
    found = plan(model, RunConfig(n_ctx=2048, n_cells=2048), MACHINE, rates, wants_remedies=False)
    attempt = LoadAttempt(EngineConfig(n_ctx=2048), SETTING, found)
    return slow_type_notice(model, attempt, rates, key, cache_dir)


SLOW_Q4_1 = expected_rates(MACHINE, {HOST_NAME: table(Q4_1=0.05)})


@pytest.mark.parametrize(
    ("file_type", "rates", "instead"),
    [
        ("Q4_1", SLOW_Q4_1, "Q4_K_M"),
        ("Q4_K_M", SLOW_Q4_1, ""),
        ("Q4_1", expected_rates(MACHINE, {HOST_NAME: table(Q4_1=0.014)}), ""),  # a little slower is no reason
        ("Q4_1", expected_rates(MACHINE), ""),  # not measured
        ("Q8_0", expected_rates(MACHINE, {HOST_NAME: table(Q8_0=0.05)}), "Q6_K"),
        ("Q6_K", expected_rates(MACHINE, {HOST_NAME: table(Q6_K=0.05)}), ""),  # all others lose more, or are larger
    ],
)
def test_a_type_that_reads_slowly_here_is_said_with_the_command_that_mends_it(
    tmp_path: Path, file_type: str, rates: Rates, instead: str
) -> None:
    said = noticed(file_type, rates, tmp_path)
    if not instead:
        assert said == ""
        return
    assert said.startswith(f"{file_type} reads slowly on this processor")
    assert shlex.split(said.partition("little more): ")[2])[::3] == ["localllm", instead]


def test_it_is_said_once_for_a_model(tmp_path: Path) -> None:
    assert noticed("Q4_1", SLOW_Q4_1, tmp_path)
    assert not noticed("Q4_1", SLOW_Q4_1, tmp_path)
    assert noticed("Q4_1", SLOW_Q4_1, tmp_path, key="another")
