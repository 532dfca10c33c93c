"""Models with sliding windows: drafts and reused prefixes change nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_answers_with_drafts_and_reused_prefixes_equal_those_made_alone_where_windows_forget(tmp_path: Path) -> None:
    model = tmp_path / "tiny-gemma3.gguf"
    subprocess.run([sys.executable, "tests/bench/make_model.py", "tiny-gemma3", "F16", model], check=True)
    workloads = [sys.executable, "tests/bench/equal_workloads.py", model, "--first", "72", "--count", "9"]
    done = subprocess.run(workloads, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout
    counts = done.stdout.split("tiny-gemma3")[1].split()
    n_cached, n_accepted = int(counts[5]), int(counts[8])
    assert n_cached > 0
    assert n_accepted > 0
