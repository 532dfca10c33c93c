"""Vectors of all-MiniLM-L6-v2, converted from its authors' checkpoint, against the original's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.app.running import RunningService
from tests.real.texts import SENTENCES


def _openai(service: RunningService, texts: list[str]) -> np.ndarray:
    answer = service.http.post("/v1/embeddings", json={"model": "default", "input": texts})
    assert answer.status_code == 200, answer.text
    return np.array([row["embedding"] for row in answer.json()["data"]])


def _ollama(service: RunningService, texts: list[str]) -> np.ndarray:
    answer = service.http.post("/api/embed", json={"model": "default", "input": texts})
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["embeddings"])


def _cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    products = (ours * theirs).sum(axis=1)
    lengths: np.ndarray = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return products / lengths


@pytest.fixture(scope="module")
def original(golden: dict[str, Any]) -> np.ndarray:
    return np.array([row["vector"] for row in golden["minilm"]["sentences"]])


@pytest.mark.parametrize("number", range(len(SENTENCES)))
def test_a_sentence_has_the_tokens_and_the_vector_of_the_original(
    minilm: RunningService, golden: dict[str, Any], original: np.ndarray, number: int
) -> None:
    sentence = SENTENCES[number]
    tokens = minilm.http.post("/tokenize", json={"content": sentence, "add_special": True}).json()["tokens"]
    assert tokens == golden["minilm"]["sentences"][number]["ids"]
    (cosine,) = _cosines(_openai(minilm, [sentence]), original[number : number + 1])
    assert cosine > 0.9999


@pytest.mark.parametrize("embed", [_openai, _ollama])
def test_sentences_sent_together_have_the_vectors_of_the_original(
    minilm: RunningService, original: np.ndarray, embed: Callable[[RunningService, list[str]], np.ndarray]
) -> None:
    vectors = embed(minilm, list(SENTENCES))
    assert _cosines(vectors, original).min() > 0.9999
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-3)


def test_two_sentences_of_one_meaning_are_nearer_than_others(minilm: RunningService) -> None:
    cat, kitten, bank, *_ = _openai(minilm, list(SENTENCES))
    assert cat @ kitten > 0.5
    assert cat @ bank < 0.2


@pytest.mark.parametrize(("name", "least"), [("F32", 0.99999), ("Q8_0", 0.998), ("Q5_1", 0.98), ("Q4_0", 0.9)])
def test_a_smaller_type_keeps_the_vectors(
    start_real: Callable[..., RunningService],
    minilm_checkpoint: Path,
    original: np.ndarray,
    tmp_path: Path,
    name: str,
    least: float,
) -> None:
    output = tmp_path / f"minilm-{name}.gguf"
    planned = plan(minilm_checkpoint, file_type_named(name), output)
    execute(planned, 2, False, lambda _done: None)
    assert output.stat().st_size == planned.n_bytes
    cosines = _cosines(_openai(start_real(model=str(output)), list(SENTENCES)), original)
    assert cosines.min() > least


def test_equal_texts_of_one_call_have_equal_vectors_of_a_chat_model_too(smollm: RunningService) -> None:
    """Else the rounding of a text depends on what stands beside it in the batch."""
    texts = [SENTENCES[0], "between", *[SENTENCES[0]] * 6]
    # No name is the default, whatever that was made for.
    answer = smollm.http.post("/v1/embeddings", json={"input": texts})
    equal = np.delete(np.array([row["embedding"] for row in answer.json()["data"]]), 1, axis=0)
    assert np.abs(equal - equal[0]).max() == 0.0
