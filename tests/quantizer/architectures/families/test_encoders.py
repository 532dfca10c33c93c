"""Encoders from checkpoint to the engine's vectors, against their arithmetic in numpy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from quantizer.checkpoint.config import CheckpointError
from quantizer.convert.checkpoint_source import open_checkpoint
from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.patience import PATIENCE_S
from tests.quantizer.encoder_checkpoints import TinyBert, TinyRanker

ENGINE = Path(__file__).parents[3] / "app" / "engine" / "llama" / "real_embedding.py"
IDS = [[5, 6, 7, 8], [9], [10, 11, 12, 13, 14, 15, 16, 17, 5, 6, 5]]
LIMIT = 2e-4  # what this arithmetic and llama.cpp's may differ by, as a share of the range
QUERY, DOCUMENTS = "hello", ["he", "llo llo o", "hello he o o l", "l", "h h h h e"]


def through_engine(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    model = folder.with_suffix(".gguf")
    execute(plan(folder, file_type_named("F32"), model), 1, False, lambda _done: None)
    request = json.dumps({str(model): {"case": case}})
    run = subprocess.run(
        [sys.executable, str(ENGINE), "64"],
        input=request,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answer: dict[str, Any] = json.loads(run.stdout)[str(model)]["case"]
    return answer


def share_of_range(expected: np.ndarray, found: object) -> float:
    return float(np.abs(expected - np.array(found)).max() / (expected.max() - expected.min()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "pool"), [("mean", lambda states: states.mean(0)), ("cls", lambda states: states[0])]
)
def test_a_converted_bert_embeds_like_its_checkpoint(pooling: str, pool: Any, tmp_path: Path) -> None:
    checkpoint = TinyBert(pooling=pooling)
    vectors = [pool(checkpoint.hidden_states(ids)) for ids in IDS]
    expected = np.stack([vector / np.linalg.norm(vector) for vector in vectors])
    found = through_engine(checkpoint.write(tmp_path / "bert"), {"inputs": IDS})["vectors"]
    assert share_of_range(expected, found) < LIMIT


@pytest.mark.slow
def test_a_converted_reranker_scores_like_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = TinyRanker()
    folder = checkpoint.write(tmp_path / "ranker")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = np.array([checkpoint.score(tokenizer.encode(QUERY, document).ids) for document in DOCUMENTS])
    found = through_engine(folder, {"query": QUERY, "documents": DOCUMENTS})["scores"]
    assert share_of_range(expected, found) < LIMIT


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"type_vocab_size": 2}, r"type_vocab_size = 2.*does not support"),
        ({"id2label": {"1": "good"}}, "not numbered from 0"),
    ],
    ids=["types for its two texts", "labels that are not numbered"],
)
def test_a_reranker_unlike_those_of_llama_cpp_is_refused(tmp_path: Path, setting: dict[str, Any], words: str) -> None:
    folder = TinyRanker().write(tmp_path / "ranker")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | setting))
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(folder)
