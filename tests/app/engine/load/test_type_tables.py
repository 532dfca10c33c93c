from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from app.engine.load.machine_file import this_build
from app.engine.load.run_history import fitted_rates
from app.engine.load.type_tables import (
    FILE_NAME,
    TypeTables,
    copies_here,
    expected_step_ratios,
    gpu_key,
    host_key,
    type_tables,
)
from offload.devices.host import default_threads
from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from offload.footprint.model import PlannedModel, RunConfig
from offload.speed.cost_model import expected_rates
from offload.speed.step_costs import CPU_COST_RATIOS
from offload.speed.type_costs import GraphCost, ProductCost, TypeCost, TypeTable
from quantizer.gguf.tensor_types import file_type_named
from tests.offload.model_outlines import header_of

COST = TypeCost(*(ProductCost(n * 1e-11, n * 1e-9) for n in (5, 4, 3, 2)), others_share=0.1)
GRAPH = GraphCost(ProductCost(1e-11, 2e-9), ProductCost(2e-11, 0.0), 3e-11, 4e-11, 5e-11, 6e-6, 0.0)
HOST = Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=0, free_bytes=0, bytes_per_s=1e9)
CARD = Device(name="GPU0", kind=DeviceKind.GPU, total_bytes=9, free_bytes=1, description="a card")


def test_a_cost_is_read_as_it_was_stored(tmp_path: Path) -> None:
    tables = TypeTables(tmp_path)
    tables.add("CPU", "Q4_0", COST)
    tables.add("CPU", "Q4_0 repacked", COST)
    tables.add_graph("CPU", GRAPH)
    assert TypeTables(tmp_path).read("CPU") == TypeTable({"Q4_0": COST, "Q4_0 repacked": COST}, GRAPH)
    assert TypeTables(tmp_path, "another build").read("CPU") == TypeTable()


def test_an_entry_of_another_form_counts_as_missing(tmp_path: Path) -> None:
    TypeTables(tmp_path).add("CPU", "Q4_0", COST)
    stored = json.loads((tmp_path / FILE_NAME).read_text())
    stored[this_build()]["CPU"] |= {"Q4_1": {"one": 3}, "graph": "fast"}
    (tmp_path / FILE_NAME).write_text(json.dumps(stored))
    assert TypeTables(tmp_path).read("CPU") == TypeTable({"Q4_0": COST})


def test_tables_belong_to_a_device_and_to_a_number_of_threads(tmp_path: Path) -> None:
    tables = TypeTables(tmp_path)
    tables.add(host_key(2), "Q4_0", COST)
    tables.add(gpu_key(CARD), "Q4_1", COST)
    machine = Machine(HOST, (CARD,))
    assert type_tables(machine, tmp_path, 2) == {"CPU": TypeTable({"Q4_0": COST}), "GPU0": TypeTable({"Q4_1": COST})}
    assert type_tables(machine, tmp_path, 3) == {"GPU0": TypeTable({"Q4_1": COST})}
    assert type_tables(Machine(HOST), tmp_path / "none", 2) == {}


def test_rates_use_what_was_measured(tmp_path: Path) -> None:
    machine = Machine(HOST)
    assert fitted_rates(machine, tmp_path, 2) == expected_rates(machine)
    TypeTables(tmp_path).add(host_key(2), "Q4_0", COST)
    rates = fitted_rates(machine, tmp_path, 2)
    assert rates.tables == {"CPU": TypeTable({"Q4_0": COST})}
    assert rates.uncertainty < expected_rates(machine).uncertainty


def test_copies_of_slow_types_go_by_what_was_measured_alone_for_any_number_of_threads(tmp_path: Path) -> None:
    slow, fast = (replace(COST, few=pace, many=pace) for pace in (ProductCost(5e-11, 0.0), ProductCost(1e-11, 0.0)))
    tables, n_threads = TypeTables(tmp_path), default_threads()
    assert copies_here(tmp_path, 0, is_repacked=True) == {}
    tables.add(host_key(n_threads), "Q4_1", slow)
    tables.add(host_key(n_threads), "Q5_1", replace(slow, others_share=0.9))
    tables.add(host_key(n_threads), "BF16", fast)
    for asked in (0, n_threads, n_threads + 1):
        assert copies_here(tmp_path, asked, is_repacked=True) == {"Q4_1": "BF16"}
    tables.add(host_key(n_threads), "BF16", replace(fast, others_share=0.9))
    assert copies_here(tmp_path, 0, is_repacked=True) == {}


def test_steps_are_expected_to_cost_what_the_measured_types_say(tmp_path: Path) -> None:
    header = header_of("llama-3.1-8b")
    model, tables = PlannedModel(header, header.tensors).quantized(file_type_named("Q8_0")), TypeTables(tmp_path)
    run_config = RunConfig(is_fused=False)
    assert expected_step_ratios(model, run_config, tmp_path, 0) == {}
    for kind in ("Q8_0", "F32"):
        tables.add(host_key(default_threads()), kind, COST)
    assert expected_step_ratios(model, run_config, tmp_path, 0) == {}, "attention was not measured"
    tables.add_graph(host_key(default_threads()), GRAPH)
    found = expected_step_ratios(model, run_config, tmp_path, 0)
    assert found.keys() >= CPU_COST_RATIOS.keys()
    assert found[1] == 1.0 < found[2] < found[32]
