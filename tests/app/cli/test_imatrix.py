from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.processes import python_module
from quantizer.imatrix import read_imatrix


def imatrix(
    environment: Mapping[str, str], *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = python_module("app.cli.main", "imatrix", *arguments)
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=cwd)


def test_matrices_are_gathered_added_and_merged(
    tmp_path: Path, environment: Mapping[str, str], tiny_model: Path
) -> None:
    run = ("--ctx", "64", "--chunks", "2", "--threads", "1", "--json")
    done = imatrix(environment, str(tiny_model), *run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first = tmp_path / "tiny.imatrix.gguf"
    assert json.loads(done.stdout) == {
        "output": str(first),
        "entries": 14,
        "chunks": 2,
        "chunk_size": 64,
        "datasets": ["calibration.txt"],
    }
    second = tmp_path / "second.gguf"
    assert imatrix(environment, str(tiny_model), *run, "--in", str(first), "-o", str(second)).returncode == 0
    merged = tmp_path / "merged.gguf"
    done = imatrix(environment, "--in", str(first), "--in", str(second), "-o", str(merged))
    assert "14 weights, over 6 windows of 64 tokens" in done.stdout
    assert [read_imatrix(path).n_chunks for path in (first, second, merged)] == [2, 4, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged.gguf", "second.gguf", first.name]


@pytest.mark.parametrize(("arguments", "cause"), [((), "no MODEL"), (("--in", "a.gguf"), "no name")])
def test_a_call_without_all_it_takes_is_wrong_use(
    environment: Mapping[str, str], arguments: tuple[str, ...], cause: str
) -> None:
    done = imatrix(environment, *arguments)
    assert done.returncode == 2
    assert cause in done.stderr


def test_a_model_is_no_matrix(tmp_path: Path, environment: Mapping[str, str], tiny_model: Path) -> None:
    done = imatrix(environment, "--in", str(tiny_model), "-o", str(tmp_path / "out.gguf"))
    assert done.returncode == 1
    assert "no importance matrix" in done.stderr
    assert not list(tmp_path.iterdir())
