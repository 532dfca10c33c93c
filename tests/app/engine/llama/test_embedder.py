from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.patience import PATIENCE_S
from tests.quantizer.gguf_encoders import tiny_bert

REAL_EMBEDDING = Path(__file__).with_name("real_embedding.py")
TEXTS = ["the cat sat", "the dog ran on and on", "a"]
LONG = "the cat sat " * 6
CASES: dict[str, dict[str, Any]] = {
    "together": {"inputs": TEXTS},
    **{f"alone {index}": {"inputs": [text]} for index, text in enumerate(TEXTS)},
    "long": {"inputs": [LONG]},
    "too long": {"inputs": ["a " * 4000]},
    "rank": {"query": "the cat ?", "documents": ["the cat sat", "the dog ran", "a b c"]},
    "rank one": {"query": "the cat ?", "documents": ["the dog ran"]},
}


def _embed(max_batch: int, *paths: Path) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, str(REAL_EMBEDDING), str(max_batch)],
        input=json.dumps({str(path): CASES for path in paths}),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr
    results = json.loads(run.stdout)
    return {path.stem: results[str(path)] for path in paths}


@pytest.fixture(scope="module")
def embedded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("encoders")
    mean = tiny_bert(folder / "mean.gguf", gguf.PoolingType.MEAN)
    cls = tiny_bert(folder / "cls.gguf", gguf.PoolingType.CLS)
    ranker = tiny_bert(folder / "ranker.gguf", gguf.PoolingType.RANK, has_rank_head=True)
    return _embed(256, tiny_model, mean, cls, ranker)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "mean", "cls"])
def test_texts_embedded_together_equal_texts_embedded_alone(embedded: dict[str, Any], name: str) -> None:
    together = np.array(embedded[name]["together"]["vectors"])
    alone = np.array([embedded[name][f"alone {index}"]["vectors"][0] for index in range(len(TEXTS))])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    assert np.abs(together[0] - together[1]).max() > 0.01


@pytest.mark.slow
def test_a_chat_model_embeds_long_texts_in_chunks_to_the_same_vector(
    embedded: dict[str, Any], tiny_model: Path
) -> None:
    chunked = _embed(16, tiny_model)["tiny"]
    assert chunked["can_split"]
    np.testing.assert_allclose(chunked["long"]["vectors"], embedded["tiny"]["long"]["vectors"], atol=1e-5)


def test_an_encoder_loads_and_refuses_to_chat(embedded: dict[str, Any]) -> None:
    assert embedded["tiny"]["can_generate"]
    assert not embedded["mean"]["can_generate"]
    assert not embedded["mean"]["can_split"]


def test_pooling_is_the_models_own(embedded: dict[str, Any]) -> None:
    mean, cls = (embedded[name]["together"]["vectors"] for name in ("mean", "cls"))
    assert np.abs(np.array(mean) - np.array(cls)).max() > 0.01


@pytest.mark.parametrize(("name", "n_ctx"), [("tiny", 128), ("mean", 64)])
def test_a_text_longer_than_the_model_takes_is_an_error_with_both_numbers(
    embedded: dict[str, Any], name: str, n_ctx: int
) -> None:
    assert embedded[name]["too long"]["details"]["n_ctx"] == n_ctx
    assert embedded[name]["too long"]["details"]["n_prompt_tokens"] > 4000


def test_a_reranker_scores_documents_whatever_they_are_batched_with(embedded: dict[str, Any]) -> None:
    scores = embedded["ranker"]["rank"]["scores"]
    assert len(set(scores)) == 3
    assert embedded["ranker"]["rank one"]["scores"] == pytest.approx(scores[1:2], abs=1e-5)


@pytest.mark.parametrize("name", ["tiny", "mean"])
def test_a_model_without_a_rank_head_refuses_to_rank(embedded: dict[str, Any], name: str) -> None:
    assert "cannot rank" in embedded[name]["rank"]["error"]
