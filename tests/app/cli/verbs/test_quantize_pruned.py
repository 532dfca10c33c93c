from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quantizer.gguf.header import read_header
from tests.app.cli.in_process import json_of, run_localllm
from tests.quantizer.checkpoints import TinyLlama


def localllm(environment: Mapping[str, str], folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    own = {**environment, "LOCALLLM_CACHE_DIR": str(folder / "cache")}
    return run_localllm(own, "quantize", *arguments, "--threads", "1", cwd=folder)


def pruned(environment: Mapping[str, str], folder: Path, *arguments: object) -> dict[str, Any]:
    return json_of(localllm(environment, folder, *arguments, "--json"))


@pytest.mark.slow
def test_the_guide_loses_the_layer_that_changes_least(tmp_path: Path, environment: Mapping[str, str]) -> None:
    planned = pruned(environment, tmp_path, "guide", "Q8_0", "--prune-layers", 1, "--dry-run")
    assert not list(tmp_path.glob("*.gguf"))
    result = pruned(environment, tmp_path, "guide", "Q8_0", "--prune-layers", 1, "--imatrix", "auto")
    output = tmp_path / "guide-pruned1-Q8_0.gguf"
    assert Path(result["output"]) == output
    layers = {layer["layer"]: layer["distance"] for layer in result["pruned"]["layers"]}
    assert result["pruned"] == planned["pruned"]
    assert result["pruned"]["removed"] == [min(layers, key=lambda layer: layers[layer])]
    header = read_header(output)
    assert header.integer("llama.block_count") == len(layers) - 1
    assert list(header.array("localllm.removed_layers")) == result["pruned"]["removed"]


@pytest.mark.slow
def test_layers_are_a_table_for_people_and_measured_once(tmp_path: Path, environment: Mapping[str, str]) -> None:
    checkpoint = TinyLlama(n_embd=64, n_ff=96).write(tmp_path / "tiny")
    first = localllm(environment, tmp_path, checkpoint, "F16", "--prune-layers", 1, "-o", tmp_path / "a.gguf")
    assert first.returncode == 0, first.stderr
    assert "to run the checkpoint in" in first.stderr
    assert "Layers left out (of 2): " in first.stderr
    assert [line.split()[2:] for line in first.stdout.splitlines()[1:3]] == [["left", "out"], []]
    again = localllm(environment, tmp_path, checkpoint, "F16", "--prune-layers", 1, "-o", tmp_path / "b.gguf")
    assert "to run the checkpoint in" not in again.stderr
    assert again.stdout.splitlines()[:3] == first.stdout.splitlines()[:3]


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("--prune-layers", 2), "2 of 2 layers cannot be removed: one layer must stay"),
        (("--prune-layers", 0), "--prune-layers"),
        (("--prune-layers", 1, "--size", "1MB"), "--prune-layers works with a TYPE only"),
        (("--prune-layers", 1, "--list"), "--prune-layers works with a TYPE only"),
    ],
)
def test_layers_that_cannot_be_left_out_are_wrong_use_before_anything_is_measured(
    tmp_path: Path, environment: Mapping[str, str], tiny_model: Path, arguments: tuple[object, ...], cause: str
) -> None:
    done = localllm(environment, tmp_path, tiny_model, *arguments)
    assert done.returncode == 2
    assert cause in done.stderr
    assert not (tmp_path / "cache" / "layers").exists()
