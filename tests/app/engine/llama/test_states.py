"""Models with states: where their sequences can be taken back to; drafts and reused prefixes change nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHAPES = ("tiny-lfm2", "tiny-mamba")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    paths = {shape: tmp_path_factory.mktemp("models") / f"{shape}.gguf" for shape in SHAPES}
    for shape, path in paths.items():
        subprocess.run([sys.executable, "tests/bench/models/make_model.py", shape, "F16", path], check=True)
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sequence_goes_back_to_the_state_of_the_place_that_truncate_names(
    shape: str, models: dict[str, Path]
) -> None:
    child = [sys.executable, "-m", "tests.app.engine.llama.real_states", models[shape]]
    done = subprocess.run(child, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("n_rollback") == (15 if shape == "tiny-lfm2" else 0)
    assert not found.pop("copied_while_rolled_back", False), (
        "llama.cpp copies the wrong state, so ours is settled first"
    )
    assert len(found) == (19 if shape == "tiny-lfm2" else 12)
    assert [name for name, is_right in found.items() if not is_right] == []


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_answers_with_drafts_and_reused_prefixes_equal_those_made_alone(shape: str, models: dict[str, Path]) -> None:
    workloads = [
        sys.executable,
        "tests/bench/engine/equal_workloads.py",
        models[shape],
        "--first",
        "72",
        "--count",
        "9",
    ]
    done = subprocess.run(workloads, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout
    counts = done.stdout.split(shape)[1].split()
    n_cached, n_drafted, n_accepted = int(counts[5]), int(counts[7]), int(counts[8])
    assert n_cached > 0
    assert 0 < n_accepted < n_drafted, "some are rejected, after which the state goes back"
