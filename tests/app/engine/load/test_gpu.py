"""What a real GPU must do, with any backend of llama.cpp.

`tests/bench/plans/gpu_backend.sh` builds one that needs no GPU.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from app.engine.load.machine import list_gpus
from offload.devices.gpus import ListedGpu
from quantizer.system.process import python_command

pytestmark = pytest.mark.gpu
GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
N_PLACEMENTS, MOST_OTHERWISE = 30, 2  # formulas of compute buffers are right within 15 %, 4 of 300 not enough
MARGIN = 0.05  # of logits: below it either token is right


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> list[ListedGpu]:
    found = list_gpus((), tmp_path_factory.mktemp("devices"))
    if not found:
        pytest.skip("this build of llama.cpp lists no GPU")
    return found


def load(folder: Path, where: str, free_bytes: int = 0) -> dict[str, Any]:
    script = str(Path(__file__).with_name("real_placement.py"))
    command = [sys.executable, script, str(GUIDE), str(folder), where, "512", str(free_bytes)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def test_every_gpu_has_a_speed_that_was_measured(gpus: list[ListedGpu]) -> None:
    for gpu in gpus:
        assert gpu.speed is not None, gpu.name
        assert gpu.speed.operations_per_s > gpu.speed.bytes_per_s > 1e6


def parts_too_early(alone: dict[str, Any], placed: dict[str, Any]) -> list[str]:
    """Return the answers of `placed` that leave those of `alone` where one token is clearly the right one."""
    found = []
    for want, got, margins in zip(alone["answers"], placed["answers"], alone["margins"], strict=True):
        n_equal = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(want, got, strict=True))))
        if n_equal < len(want) and margins[n_equal] >= MARGIN:
            found.append(f"{want} and {got} part where the margin is {margins[n_equal]}")
    return found


def test_the_guide_answers_on_a_gpu_as_on_the_processor(gpus: list[ListedGpu], tmp_path: Path) -> None:
    alone, placed = load(tmp_path, ""), load(tmp_path, "real")
    assert alone["is_on_host"]
    assert placed["plan"]["devices"][0]["layers"] > 0, "on " + gpus[0].name
    assert parts_too_early(alone, placed) == []


@pytest.mark.parametrize("n_layers", range(5))
def test_an_answer_stays_the_same_with_any_number_of_layers_on_a_gpu(
    gpus: list[ListedGpu], tmp_path: Path, n_layers: int
) -> None:
    alone, placed = load(tmp_path, ""), load(tmp_path, f"real:{n_layers}")
    assert placed["plan"]["devices"][0]["layers"] == n_layers, "on " + gpus[0].name
    assert parts_too_early(alone, placed) == []


@pytest.mark.usefixtures("gpus")
def test_random_placements_hold_what_was_planned() -> None:
    seed = str(random.SystemRandom().randrange(1 << 32))
    arguments = ["--real", "--runs", str(N_PLACEMENTS), "--seed", seed]
    command = python_command("tests.bench.plans.place_layers", *arguments)
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    n_planned = len(re.findall(": as planned", run.stdout))
    assert n_planned >= N_PLACEMENTS - MOST_OTHERWISE, f"{' '.join(arguments)}\n{run.stdout}{run.stderr}"


def test_two_processes_use_a_gpu_at_once(gpus: list[ListedGpu], tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("real_placement.py")), str(GUIDE), str(tmp_path), "real"]
    runs = [subprocess.Popen([*command, "512", "0"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    reports = [json.loads(run.communicate(timeout=300)[0]) for run in runs]
    assert all(run.returncode == 0 for run in runs)
    assert reports[0]["answers"] == reports[1]["answers"], gpus[0].name
