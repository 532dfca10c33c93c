from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from app.cli.resources import shipped
from quantizer.gguf.header import read_header
from quantizer.mix.imatrix import read_imatrix
from quantizer.system.process import python_command
from tests.app.cli.in_process import json_of, run_localllm
from tests.app.interrupting import interrupt
from tests.quantizer.checkpoints import TinyLlama
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
    return json_of(evaluate(environment, *arguments, "--json"))


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_table_has_a_column_for_each_model(
    environment: Mapping[str, str], tiny_model: Path, coarse_model: Path, text: Path
) -> None:
    done = evaluate(environment, str(coarse_model), "--against", str(tiny_model), "--text", str(text), "--ctx", "64")
    assert "coarse.gguf" in done.stdout
    assert "tiny.gguf" in done.stdout
    assert "KL divergence, median" in done.stdout


@pytest.mark.slow
def test_the_text_that_ships_fills_windows_of_a_tiny_context(environment: Mapping[str, str], tiny_model: Path) -> None:
    result = evaluated(environment, str(tiny_model), "--chunks", "1")
    assert result["n_windows"] == 1
    assert len(shipped("evaluation.txt").read_text(encoding="utf-8")) > 10_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("--ctx", "200"), "trained on 128 tokens"),
        (("--ctx", "8"), "too short"),
        (("--text", "nowhere"), "be read"),
        (("--against", "guide", "--ctx", "64"), "different vocabularies"),
    ],
)
def test_what_cannot_be_evaluated_is_wrong_use(
    environment: Mapping[str, str], tiny_model: Path, arguments: tuple[str, ...], cause: str
) -> None:
    done = evaluate(environment, str(tiny_model), *arguments)
    assert done.returncode == 2
    assert cause in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C reaches process groups otherwise there")
@pytest.mark.parametrize("verb", ["eval", "imatrix"])
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path, environment: Mapping[str, str], verb: str) -> None:
    interrupt(environment, tmp_path, verb, "guide")
    assert not list(tmp_path.iterdir())


def imatrix(
    environment: Mapping[str, str], *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return run_localllm(environment, "imatrix", *arguments, cwd=cwd)


@pytest.mark.slow
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


@pytest.mark.parametrize(("arguments", "cause"), [((), "no MODEL"), (("--in", "a.gguf"), "no output name")])
def test_a_call_without_all_it_takes_is_wrong_use(
    environment: Mapping[str, str], arguments: tuple[str, ...], cause: str
) -> None:
    done = imatrix(environment, *arguments)
    assert done.returncode == 2
    assert cause in done.stderr


def test_a_model_is_no_matrix(tmp_path: Path, environment: Mapping[str, str], tiny_model: Path) -> None:
    done = imatrix(environment, "--in", str(tiny_model), "-o", str(tmp_path / "out.gguf"))
    assert done.returncode == 1
    assert "not an importance matrix" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_model_is_never_replaced_by_its_matrix(environment: Mapping[str, str], tiny_model: Path) -> None:
    before = tiny_model.read_bytes()
    done = imatrix(environment, str(tiny_model), "-o", str(tiny_model))
    assert done.returncode == 2
    assert "is the input" in done.stderr
    assert tiny_model.read_bytes() == before


def test_an_invalid_output_is_an_error_before_the_model_runs(environment: Mapping[str, str], tmp_path: Path) -> None:
    done = imatrix(environment, "guide", "-o", str(tmp_path / "nowhere" / "m.gguf"))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"Error: There is no folder {tmp_path / 'nowhere'}. Create it, or name another output with -o."
    ]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyLlama(n_layers=1, extra_config={"max_position_embeddings": 512}).write(
        tmp_path_factory.mktemp("model") / "tiny"
    )


@pytest.mark.slow
def test_a_checkpoint_gets_its_matrix_by_itself_once(
    tmp_path: Path, environment: Mapping[str, str], checkpoint: Path
) -> None:
    own = {**environment, "LOCALLLM_CACHE_DIR": str(tmp_path / "cache")}

    def quantize(name: str) -> subprocess.CompletedProcess[str]:
        call = ("quantize", str(checkpoint), name, "--imatrix", "auto", "-o", str(tmp_path / f"{name}.gguf"))
        command = python_command("app.cli.main", *call)
        return subprocess.run(command, capture_output=True, text=True, env=own, check=False)

    first, second = quantize("Q2_K_S"), quantize("Q4_K_M")
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    (kept,) = (tmp_path / "cache" / "imatrix").iterdir()
    assert read_imatrix(kept).datasets == ("calibration.txt",)
    for name in ("Q2_K_S", "Q4_K_M"):
        assert read_header(tmp_path / f"{name}.gguf").text("quantize.imatrix.file") == kept.name
    assert "to run the checkpoint" in first.stderr
    assert "to run the checkpoint" not in second.stderr


def test_a_dry_run_computes_nothing(environment: Mapping[str, str], checkpoint: Path) -> None:
    done = run_localllm(environment, "quantize", checkpoint, "--imatrix", "auto", "--dry-run")
    assert done.returncode == 2
    assert "dry run computes no" in done.stderr
