from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import gguf
import numpy as np
import pytest

from app.engine.model_task import TaskProgress, run_child
from app.engine.offline.imatrix import ImatrixRequest, run_imatrix
from quantizer.mix.imatrix import ImportanceMatrix
from quantizer.system.errors import EngineError, UsageError
from tests.quantizer.gguf_files import N_EMBD, N_FF, N_LAYERS, tiny_llama, tiny_weights

TEXT = "The other hen heard that the weather in the north gathers there. " * 8
N_CTX, N_EXPERTS, N_USED = 48, 4, 2
FFN = ("ffn_gate", "ffn_up", "ffn_down")


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    use_folders(monkeypatch, environment)


def use_folders(patch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    for name in ("LOCALLLM_CACHE_DIR", "LOCALLLM_CONFIG"):
        patch.setenv(name, environment[name])


@pytest.fixture(scope="module")
def expert_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose feed-forward part is four experts, of which two are used."""

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(N_EXPERTS)
        writer.add_expert_used_count(N_USED)

    rng = np.random.default_rng(2)
    shapes = {"gate": (N_EXPERTS, N_FF, N_EMBD), "up": (N_EXPERTS, N_FF, N_EMBD), "down": (N_EXPERTS, N_EMBD, N_FF)}
    tensors = {name: array for name, array in tiny_weights().items() if not name[6:].startswith(FFN)}
    for layer in range(N_LAYERS):
        tensors[f"blk.{layer}.ffn_gate_inp.weight"] = rng.standard_normal((N_EXPERTS, N_EMBD)).astype(np.float32)
        for part, shape in shapes.items():
            tensors[f"blk.{layer}.ffn_{part}_exps.weight"] = (rng.standard_normal(shape) * 0.05).astype(np.float16)
    return tiny_llama(tmp_path_factory.mktemp("model") / "experts.gguf", edit, tensors)


def request_for(path: Path, n_ctx: int = N_CTX) -> ImatrixRequest:
    return ImatrixRequest(str(path), TEXT, "text", n_ctx, 3, n_threads=1)


@pytest.fixture(scope="module")
def collected(tiny_model: Path, environment: Mapping[str, str]) -> tuple[ImportanceMatrix, list[TaskProgress]]:
    """The matrix of the tiny model, collected in a process, and the steps of that."""
    steps: list[TaskProgress] = []

    def track(steps_of_child: Iterator[TaskProgress]) -> Iterator[TaskProgress]:
        for step in steps_of_child:
            steps.append(step)
            yield step

    with pytest.MonkeyPatch.context() as patch:
        use_folders(patch, environment)
        return run_imatrix(request_for(tiny_model), track), steps


def tokens_of_text() -> list[int]:
    """TEXT as the tiny vocabulary tokenizes it: bytes, but for "th" and "he"."""
    merged = {"th": 256, "he": 257}
    return [merged.get(piece) or ord(piece) for piece in re.findall("th|he|.", TEXT)]


@pytest.mark.slow
def test_the_first_layer_gets_the_normalised_embeddings_of_the_text(
    collected: tuple[ImportanceMatrix, list[TaskProgress]],
) -> None:
    matrix, steps = collected
    assert steps == [TaskProgress(index, 3) for index in range(3)]
    embeddings = tiny_weights()["token_embd.weight"].astype(np.float64)[tokens_of_text()[: 3 * N_CTX]]
    normalised = embeddings / np.sqrt((embeddings**2).mean(axis=1, keepdims=True) + 1e-5)
    for part in ("attn_q", "attn_k", "attn_v"):
        entry = matrix.entries[f"blk.0.{part}.weight"]
        assert entry.counts.tolist() == [3 * N_CTX]
        assert entry.sums[0] == pytest.approx((normalised**2).sum(axis=0), rel=1e-3)


def test_every_weight_of_every_layer_sees_every_token(collected: tuple[ImportanceMatrix, list[TaskProgress]]) -> None:
    matrix, _ = collected
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", *FFN)
    assert set(matrix.entries) == {f"blk.{layer}.{part}.weight" for layer in range(N_LAYERS) for part in parts}
    assert {int(entry.counts[0]) for entry in matrix.entries.values()} == {3 * N_CTX}
    assert (matrix.n_chunks, matrix.chunk_size, matrix.datasets) == (3, N_CTX, ("text",))


@pytest.mark.slow
def test_each_token_uses_its_experts(expert_model: Path) -> None:
    matrix = run_imatrix(request_for(expert_model), lambda steps: steps)
    for part in FFN:
        entry = matrix.entries[f"blk.1.{part}_exps.weight"]
        assert entry.sums.shape == (N_EXPERTS, N_FF if part == "ffn_down" else N_EMBD)
        assert entry.counts.sum() == 3 * N_CTX * N_USED
    gate, up = (matrix.entries[f"blk.0.ffn_{part}_exps.weight"] for part in ("gate", "up"))
    assert np.array_equal(gate.sums, up.sums)


@pytest.mark.slow
def test_an_error_in_the_callback_of_native_code_is_raised(tiny_model: Path) -> None:
    program = """
import sys
from app.engine.model_task import serve_task
from quantizer.system.errors import EngineError
from quantizer.mix.imatrix import ImatrixCollector
def add(*_arguments): raise EngineError("Too much was seen.")
ImatrixCollector.add = add
from app.engine.offline.imatrix import ImatrixRequest, collect
sys.exit(serve_task(ImatrixRequest, collect))
"""
    request = ImatrixRequest(str(tiny_model), TEXT, "text", N_CTX, 1, n_threads=1, output="nowhere")
    with pytest.raises(EngineError, match="Too much was seen"):
        list(run_child([sys.executable, "-c", program], asdict(request)))


@pytest.mark.slow
def test_an_error_of_the_child_is_raised_here(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match="trained on 128 tokens"):
        run_imatrix(request_for(tiny_model, n_ctx=129), lambda steps: steps)
