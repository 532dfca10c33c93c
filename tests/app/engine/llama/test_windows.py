"""Models with sliding windows: what they forget changes nothing, and they take what is planned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

REAL_WINDOWS = Path(__file__).with_name("real_windows.py")


def made(folder: Path, file_type: str) -> Path:
    model = folder / "tiny-gemma3.gguf"
    subprocess.run([sys.executable, "tests/bench/models/make_model.py", "tiny-gemma3", file_type, model], check=True)
    return model


def test_a_sequence_goes_on_the_same_without_what_its_window_left_and_in_the_planned_memory(tmp_path: Path) -> None:
    command = [sys.executable, str(REAL_WINDOWS), str(made(tmp_path, "F32"))]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert run.returncode == 0, run.stderr
    planned, allocated, is_done, held_before, held_after, difference, *n_left = json.loads(run.stdout)
    assert allocated == planned
    assert (is_done, held_before, held_after) == (True, 0, 400 - 64)
    assert difference < 1e-4
    assert n_left == [399, 0], "the window of the last token is kept, and no other"


def test_answers_with_drafts_and_reused_prefixes_equal_those_made_alone_where_windows_forget(tmp_path: Path) -> None:
    workloads = [
        sys.executable,
        "tests/bench/engine/equal_workloads.py",
        made(tmp_path, "F16"),
        "--first",
        "72",
        "--count",
        "9",
    ]
    done = subprocess.run(workloads, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout
    counts = done.stdout.split("tiny-gemma3")[1].split()
    n_cached, n_accepted = int(counts[5]), int(counts[8])
    assert n_cached > 0
    assert n_accepted > 0
