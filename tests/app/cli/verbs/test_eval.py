from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from app.cli.resources import shipped
from tests.app.cli.in_process import run_localllm
from tests.app.interrupting import interrupt
from tests.quantizer.gguf_files import tiny_llama, tiny_weights

TEXT = "The hen thinks that the other path is the thing that she gathers there. " * 12


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def coarse_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with weights that were rounded."""
    rounded = {
        name: (np.round(array * 64) / 64).astype(array.dtype) if name.startswith("blk") and array.ndim == 2 else array
        for name, array in tiny_weights().items()
    }
    return tiny_llama(tmp_path_factory.mktemp("model") / "coarse.gguf", tensors=rounded)


def evaluate(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_localllm(environment, "eval", *arguments, "--threads", "1")


def evaluated(environment: Mapping[str, str], *arguments: str) -> dict[str, object]:
    done = evaluate(environment, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_a_model_that_was_rounded_lost_a_little(
    environment: Mapping[str, str], tiny_model: Path, coarse_model: Path, text: Path
) -> None:
    arguments = ("--against", str(tiny_model), "--text", str(text), "--ctx", "64", "--chunks", "4")
    result = evaluated(environment, str(coarse_model), *arguments)
    assert result["n_windows"] == 4
    statistics = result["statistics"]
    assert isinstance(statistics, dict)
    assert statistics["n_tokens"] == 4 * 31
    assert 1e-5 < statistics["comparison"]["mean_kld"]["value"] < 0.1
    same = evaluated(environment, str(tiny_model), *arguments)["statistics"]
    assert isinstance(same, dict)
    assert same["comparison"]["mean_kld"]["value"] == 0
    assert same["perplexity"] == same["comparison"]["reference_perplexity"]


def test_the_table_has_a_column_for_each_model(
    environment: Mapping[str, str], tiny_model: Path, coarse_model: Path, text: Path
) -> None:
    done = evaluate(environment, str(coarse_model), "--against", str(tiny_model), "--text", str(text), "--ctx", "64")
    assert "coarse.gguf" in done.stdout
    assert "tiny.gguf" in done.stdout
    assert "KL divergence, median" in done.stdout


def test_the_text_that_ships_fills_windows_of_a_tiny_context(environment: Mapping[str, str], tiny_model: Path) -> None:
    result = evaluated(environment, str(tiny_model), "--chunks", "1")
    assert result["n_windows"] == 1
    assert len(shipped("evaluation.txt").read_text(encoding="utf-8")) > 10_000


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [(("--ctx", "200"), "trained on 128 tokens"), (("--ctx", "8"), "too short"), (("--text", "nowhere"), "be read")],
)
def test_what_cannot_be_evaluated_is_wrong_use(
    environment: Mapping[str, str], tiny_model: Path, arguments: tuple[str, ...], cause: str
) -> None:
    done = evaluate(environment, str(tiny_model), *arguments)
    assert done.returncode == 2
    assert cause in done.stderr


def test_models_of_different_vocabularies_are_not_compared(environment: Mapping[str, str], tiny_model: Path) -> None:
    done = evaluate(environment, str(tiny_model), "--against", "guide", "--ctx", "64")
    assert done.returncode == 2
    assert "different vocabularies" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C reaches process groups otherwise there")
@pytest.mark.parametrize("verb", ["eval", "imatrix"])
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path, environment: Mapping[str, str], verb: str) -> None:
    interrupt(environment, tmp_path, verb, "guide")
    assert not list(tmp_path.iterdir())
