"""What a first load measures of a model's types, so that its first prompts use copies of slow ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import app.engine.llama.type_speeds as type_speeds
from app.engine.load.quick_types import measure_prompts, tiles_to_leave_out
from app.engine.load.type_tables import TypeTables, copies_here, host_key, quick_key, type_tables
from offload.devices.host import default_threads
from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from offload.footprint.model import PlannedModel
from offload.speed.type_costs import ProductCost, TypeCost, kind_of
from quantizer.gguf.header import TensorInfo
from quantizer.gguf.tensor_types import tensor_type_named
from tests.offload.model_outlines import header_of

PACES = {"Q4_1": 5e-11, "Q4_0": 3e-11, "Q4_0 repacked": 1e-11, "Q5_0": 3e-11, "BF16": 1e-11, "F16": 2e-11}


def cost(pace_s: float) -> TypeCost:
    each = ProductCost(pace_s, 0.0)
    return TypeCost(each, each, each, each)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds that were measured, on a processor with PACES."""
    kinds: list[str] = []

    class Bench:
        def __init__(self, n_threads: int, *, repacks: bool, clock: Callable[[], float]) -> None:
            assert n_threads == 1, "the processor's time is that of one"

        def quick_cost(self, kind: str) -> TypeCost | None:
            kinds.append(kind)
            return cost(PACES[kind]) if kind in PACES else None

        def tiled_from(self, name: str) -> int:
            kinds.append(f"{name} tiles")
            return {"Q6_K": 12, "Q2_K": 16}.get(name, 8)

        def close(self) -> None:
            pass

    monkeypatch.setattr(type_speeds, "TypeBench", Bench)
    return kinds


def tensors(name: str, model: str = "qwen3-0.6b") -> tuple[TensorInfo, ...]:
    header = header_of(model)
    kind = tensor_type_named(name)
    return tuple(replace(tensor, type_id=kind.type_id) for tensor in PlannedModel(header, header.tensors).tensors)


@pytest.mark.parametrize(
    ("name", "copies"), [("Q4_1", {"Q4_1": "BF16"}), ("Q5_0", {"Q5_0": "BF16"}), ("Q4_0", {}), ("F16", {})]
)
def test_a_first_load_measures_whether_the_models_type_gains_by_a_copy(
    tmp_path: Path, measured: list[str], name: str, copies: dict[str, str]
) -> None:
    measure_prompts(tensors(name), tmp_path, 0, is_safe=True)
    assert copies_here(tmp_path, 0, is_repacked=True) == copies
    assert len(measured) <= 4
    assert (kind_of(name, is_repacked=True) in measured) == (name != "F16")


def test_the_next_load_and_one_after_the_whole_table_was_measured_measure_nothing(
    tmp_path: Path, measured: list[str]
) -> None:
    measure_prompts(tensors("Q4_1"), tmp_path, 0, is_safe=True)
    measured.clear()
    measure_prompts(tensors("Q4_1"), tmp_path, 0, is_safe=True)
    assert measured == []
    other = tmp_path / "other"
    for kind in ("Q4_1", "BF16", "F16"):
        TypeTables(other).add(host_key(default_threads()), kind, replace(cost(4e-11), others_share=0.0))
    measure_prompts(tensors("Q4_1"), other, 0, is_safe=True)
    assert measured == []
    assert copies_here(other, 0, is_repacked=True) == {}


def test_another_type_is_measured_beside_what_is_known(tmp_path: Path, measured: list[str]) -> None:
    measure_prompts(tensors("Q4_1"), tmp_path, 0, is_safe=False)
    assert measured == ["Q4_1", "BF16", "F16"]
    measured.clear()
    measure_prompts(tensors("Q5_0"), tmp_path, 0, is_safe=False)
    assert measured == ["Q5_0"]


def test_small_models_and_unquantized_ones_are_not_worth_it(tmp_path: Path, measured: list[str]) -> None:
    small = [replace(tensor, shape=(32, 32)) for tensor in tensors("Q4_1")]
    measure_prompts(small, tmp_path, 0, is_safe=True)
    assert measured == []


def test_plans_do_not_use_what_was_measured_of_prompts_alone(tmp_path: Path, measured: list[str]) -> None:
    measure_prompts(tensors("Q4_1"), tmp_path, 0, is_safe=True)
    assert measured
    machine = Machine(Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=0, free_bytes=0))
    assert type_tables(machine, tmp_path) == {}


@pytest.mark.parametrize(("name", "left_out"), [("Q6_K", {"Q6_K": 12}), ("Q2_K", {"Q2_K": 16}), ("Q5_K", {})])
def test_where_tiled_kernels_pay_is_measured_once_for_each_type(
    tmp_path: Path, measured: list[str], name: str, left_out: dict[str, int]
) -> None:
    for _ in range(2):
        assert tiles_to_leave_out(tensors(name), tmp_path, 2, is_safe=True) == left_out
    assert measured == [f"{name} tiles"]


def test_types_without_tiled_kernels_repacked_ones_and_small_models_are_not_measured_for_them(
    tmp_path: Path, measured: list[str]
) -> None:
    assert tiles_to_leave_out(tensors("Q8_0"), tmp_path, 2, is_safe=True) == {}
    assert tiles_to_leave_out(tensors("Q6_K")[-4:], tmp_path / "few", 2, is_safe=True) == {}
    TypeTables(tmp_path).add(quick_key(), kind_of("Q4_K", is_repacked=True), cost(1e-11))
    assert tiles_to_leave_out(tensors("Q4_K"), tmp_path, 2, is_safe=True) == {}
    assert measured == []
    tiles_to_leave_out(tensors("Q4_K"), tmp_path, 2, is_safe=False)  # nothing is repacked by a faulty build
    assert measured == ["Q4_K tiles"]


@pytest.mark.parametrize("entry", ['{"Q6_K": "12"}', '{"Q6_K": true}', '{"Q6_K": null}', "[]"])
def test_a_damaged_entry_of_tiled_kernels_is_measured_again(tmp_path: Path, measured: list[str], entry: str) -> None:
    tiles_to_leave_out(tensors("Q6_K"), tmp_path, 2, is_safe=True)
    (path,) = tmp_path.glob("types.json")
    text = path.read_text()
    assert '"Q6_K": 12' in text
    begin = text.index("{", text.index(" tiles"))
    path.write_text(text[:begin] + entry + text[text.index("}", begin) + 1 :])
    assert tiles_to_leave_out(tensors("Q6_K"), tmp_path, 2, is_safe=True) == {"Q6_K": 12}
    assert measured == ["Q6_K tiles"] * 2
