from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.cli.calibration import MixTarget
from app.engine.load.type_tables import FILE_NAME, TypeTables, host_key
from offload.speed.type_costs import ProductCost, TypeCost
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import TENSOR_TYPES, WEIGHT_TYPES
from tests.app.cli.in_process import json_of, run_localllm
from tests.app.interrupting import interrupt
from tests.quantizer.checkpoints import TinyLlama

pytestmark = pytest.mark.slow


def localllm(environment: Mapping[str, str], folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_localllm(environment, "quantize", *arguments, "--threads", "1", cwd=folder)


def mixed(environment: Mapping[str, str], folder: Path, *arguments: object) -> dict[str, Any]:
    return json_of(localllm(environment, folder, *arguments, "--json"))


def types_in(path: Path) -> dict[str, str]:
    return {tensor.name: TENSOR_TYPES[tensor.type_id].name for tensor in read_header(path).tensors}


def test_a_size_is_met_and_what_was_chosen_is_in_the_file(
    tmp_path: Path, environment: Mapping[str, str], tiny_model: Path
) -> None:
    asked = tiny_model.stat().st_size // 2
    result = mixed(environment, tmp_path, tiny_model, "--size", asked)
    output = tmp_path / f"tiny-{MixTarget(asked).label}.gguf"
    assert Path(result["output"]) == output
    assert 0.98 * asked <= output.stat().st_size == result["bytes"] <= asked
    assert result["type"] == "mix"
    chosen = result["mix"]["tensors"]
    assert {name: kind for name, kind in types_in(output).items() if name in chosen} == chosen
    assert result["mix"]["expected_kld"] == pytest.approx(sum(group["kld"] for group in result["mix"]["groups"]))
    assert result["mix"]["nearest_plain"]["bytes"] > 0
    assert result["mix"]["windows"] >= 16


def test_a_divergence_is_met_and_types_set_by_hand_stay(
    tmp_path: Path, environment: Mapping[str, str], tiny_model: Path
) -> None:
    largest = mixed(environment, tmp_path, tiny_model, "--size", tiny_model.stat().st_size // 3, "--dry-run")
    assert not list(tmp_path.iterdir())
    target = largest["mix"]["expected_kld"] / 4
    hand = ("--tensor", "blk.0.attn_k=Q8_0")
    result = mixed(environment, tmp_path, tiny_model, "--kld", f"{target:.3g}", *hand, "-o", tmp_path / "mix.gguf")
    assert target * 0.85 <= result["mix"]["measured_kld"] <= target * 1.01
    assert types_in(tmp_path / "mix.gguf")["blk.0.attn_k.weight"] == "Q8_0"
    assert "blk.0.attn_k.weight" not in result["mix"]["tensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["mix.gguf"]


def test_a_checkpoint_is_searched_as_well_and_leaves_only_its_mix(
    tmp_path: Path, environment: Mapping[str, str]
) -> None:
    checkpoint = TinyLlama(n_embd=64, n_ff=96).write(tmp_path / "tiny")
    f16 = mixed(environment, tmp_path, checkpoint, "F16", "--dry-run")["bytes"]
    done = localllm(environment, tmp_path, checkpoint, "--size", f16 // 2, "-o", tmp_path / "mix.gguf")
    assert done.returncode == 0, done.stderr
    assert "to run the checkpoint in" in done.stderr
    assert "blk.*.ffn_down" in done.stdout
    assert re.search(r"measured on \d+ windows of \d+ tokens", " ".join(done.stdout.split()))
    assert 0.98 * (f16 // 2) <= (tmp_path / "mix.gguf").stat().st_size <= f16 // 2
    assert not list((Path(environment["LOCALLLM_CACHE_DIR"]) / "run").iterdir())


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("Q4_K_M", "--size", "1MB"), "TYPE and --size exclude each other"),
        (("--size", "1MB", "--kld", "0.1"), "--size and --kld exclude each other"),
        (("--kld", "0.1", "--list"), "--kld and --list exclude each other"),
        (("--speed", "30", "--kld", "0.1"), "--kld and --speed exclude each other"),
        (("--speed", "30"), "was not measured yet"),
        (("--kld", "0"), "0 must be more than 0"),
        (("--kld", "nan"), "nan must be more than 0"),
    ],
)
def test_contradicting_targets_are_wrong_use(
    tmp_path: Path, environment: Mapping[str, str], tiny_model: Path, arguments: tuple[str, ...], cause: str
) -> None:
    done = localllm(environment, tmp_path, tiny_model, *arguments)
    assert done.returncode == 2
    assert cause in done.stderr


@pytest.mark.parametrize("size", ["5K", "1GB"])
def test_a_size_out_of_reach_is_refused_with_the_range(
    tmp_path: Path, environment: Mapping[str, str], tiny_model: Path, size: str
) -> None:
    done = localllm(environment, tmp_path, tiny_model, "--size", size)
    assert done.returncode == 2
    assert "This model can have" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_size_out_of_reach_is_refused_before_anything_is_measured(
    tmp_path: Path, environment: Mapping[str, str]
) -> None:
    """What measures runs the model: there is none to run, the checkpoint's weights are not read."""
    checkpoint = TinyLlama(n_embd=64, n_ff=96).write(tmp_path / "tiny")
    cache = tmp_path / "cache"
    done = localllm({**environment, "LOCALLLM_CACHE_DIR": str(cache)}, tmp_path, checkpoint, "--size", "1GB")
    assert done.returncode == 2
    assert "This model can have" in done.stderr
    assert "to run the checkpoint in" not in done.stderr
    assert not (cache / "imatrix").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C reaches process groups otherwise there")
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path, environment: Mapping[str, str]) -> None:
    interrupt(
        {**environment, "LOCALLLM_CACHE_DIR": str(tmp_path / "cache")}, tmp_path, "quantize", "guide", "--size", "2MB"
    )
    measured = ("selftest.json", "bandwidth.json")  # of this machine, whole
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in measured]


def test_outputs_are_called_after_their_target() -> None:
    assert [MixTarget(n_bytes).label for n_bytes in (4_200_000_000, 2_886_000, 5120, 999)] == [
        *("4.2GB", "2.886MB", "5.12kB", "999B")
    ]
    assert MixTarget(kld=0.02).label == "kld0.02"
    assert MixTarget(tps=30).label == "30tps"


def test_a_speed_is_met_by_what_the_types_take_here(
    tmp_path: Path, environment: Mapping[str, str], tiny_model: Path
) -> None:
    """The table is made up: each bit takes a microsecond, so that the answers of a tiny model depend on them."""
    tables = TypeTables(Path(environment["LOCALLLM_CACHE_DIR"]))
    for name, kind in WEIGHT_TYPES.items():
        cost = ProductCost(kind.bits_per_weight * 1e-6, 0.0)
        tables.add(host_key(1), name, TypeCost(cost, cost, cost, cost))
    try:
        planned = json_of(
            localllm(environment, tmp_path, tiny_model, "--size", tiny_model.stat().st_size // 2, "--dry-run", "--json")
        )
        slowest = planned["mix"]["writes_tps"]
        assert slowest > 0
        asked = 1.3 * slowest
        found = mixed(environment, tmp_path, tiny_model, "--speed", f"{asked:.6g}", "--dry-run")
        assert asked * 0.999 <= found["mix"]["writes_tps"] <= asked * 1.3
        assert found["bytes"] < planned["bytes"]
        refused = localllm(environment, tmp_path, tiny_model, "--speed", 1000 * asked, "--dry-run")
        assert refused.returncode == 2
        assert "No mix writes" in refused.stderr
    finally:
        (Path(environment["LOCALLLM_CACHE_DIR"]) / FILE_NAME).unlink()
