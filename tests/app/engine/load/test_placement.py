"""Placements on pseudo-GPUs: the processor behind llama.cpp's RPC, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.engine.load.machine import list_gpus
from tests.app.pseudo_gpu import free_ports, pseudo_gpus
from tests.patience import PATIENCE_S

MIB = 1 << 20
MARGIN_BYTES = 256 * MIB
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the pseudo-GPU is limited by a resource limit"),
]


@pytest.fixture(scope="module")
def endpoints() -> Iterator[list[str]]:
    with pseudo_gpus(free_ports(2)) as found:
        yield found


def load(model: Path, folder: Path, endpoints: list[str], *, n_ctx: int = 1024, free_bytes: int = 0) -> dict[str, Any]:
    script = Path(__file__).with_name("real_placement.py")
    sizes = [str(n_ctx), str(free_bytes)]
    command = [sys.executable, str(script), str(model), str(folder), ",".join(endpoints), *sizes]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 0, run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def test_servers_are_devices_like_others_with_a_link_that_was_measured(tmp_path: Path, endpoints: list[str]) -> None:
    report = list_gpus(endpoints, tmp_path)
    assert [gpu.name for gpu in report] == ["RPC0", "RPC1"]
    for gpu, endpoint in zip(report, endpoints, strict=True):
        assert gpu.description == endpoint
        assert gpu.free_bytes > MIB
        assert 0 < (gpu.link_latency_s or 0) < 1
        assert (gpu.link_bytes_per_s or 0) > MIB
        assert gpu.speed is not None
        assert gpu.speed.bytes_per_s > MIB
        assert gpu.speed.operations_per_s > gpu.speed.bytes_per_s, "a prompt is computed, not only read"


def test_layers_are_on_the_planned_devices_and_answers_equal_those_of_the_processor(
    tiny_model: Path, tmp_path: Path, endpoints: list[str]
) -> None:
    alone = load(tiny_model, tmp_path, [])
    whole = load(tiny_model, tmp_path, endpoints)
    assert (alone["is_on_host"], whole["is_on_host"]) == (True, False)
    assert alone["answers"] == whole["answers"]
    planned = {device["name"]: device for device in whole["plan"]["devices"]}
    assert planned["RPC0"]["layers"] == 3
    held = whole["held"]["RPC0"]
    for kind, planned_kind in (("weight_bytes", "weights_bytes"), ("cache_bytes", "kv_bytes")):
        assert held[kind] == pytest.approx(planned["RPC0"][planned_kind], rel=0.03, abs=MIB // 50)
    assert held["compute_bytes"] == pytest.approx(planned["RPC0"]["compute_bytes"], rel=0.03, abs=MIB // 4)
    assert sum(whole["held"]["RPC1"].values()) == 0


def test_what_steps_cost_with_layers_on_a_gpu_is_measured_at_the_first_load(
    tiny_model: Path, tmp_path: Path, endpoints: list[str]
) -> None:
    usual = load(tiny_model, tmp_path, [])["step_ratios"]
    found = load(tiny_model, tmp_path, endpoints)["step_ratios"]
    assert set(usual) == set(found)
    assert all(found[n_tokens] != usual[n_tokens] for n_tokens in ("2", "8", "16", "32"))


def test_layers_without_room_stay_on_the_processor(tiny_model: Path, tmp_path: Path, endpoints: list[str]) -> None:
    report = load(tiny_model, tmp_path, endpoints, free_bytes=MARGIN_BYTES - 1)
    assert [device["layers"] for device in report["plan"]["devices"]] == [0, 0, 3]
    assert report["is_on_host"]


def test_a_gpu_without_a_layer_computes_prompts_as_the_processor_does_in_the_planned_bytes(
    tiny_model: Path, tmp_path: Path, endpoints: list[str]
) -> None:
    alone, lent = load(tiny_model, tmp_path, []), load(tiny_model, tmp_path, [f"fetching:{endpoints[0]}"])
    assert alone["answers"] == lent["answers"]
    assert (lent["is_on_host"], lent["fetches_weights"], lent["plan"]["prompt_gpu"]) == (True, True, "RPC0")
    planned = {device["name"]: device for device in lent["plan"]["devices"]}
    held = lent["held"]["RPC0"]
    assert (planned["RPC0"]["layers"], held["weight_bytes"], held["cache_bytes"]) == (0, 0, 0)
    assert held["compute_bytes"] > MIB // 4
    assert held["compute_bytes"] == pytest.approx(planned["RPC0"]["compute_bytes"], rel=0.03)


def test_a_gpu_with_less_memory_than_reported_is_an_error_with_the_numbers(tiny_model: Path, tmp_path: Path) -> None:
    with pseudo_gpus(free_ports(1), most_bytes=32 * MIB) as full:
        report = load(tiny_model, tmp_path, full, n_ctx=1 << 18)
    assert "Not enough memory" in report["error"]
    assert "on RPC0 and may use" in report["error"]


def test_a_server_that_is_gone_is_named(tiny_model: Path, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    assert f"127.0.0.1:{port} cannot be reached" in load(tiny_model, tmp_path, [f"127.0.0.1:{port}"])["error"]
