"""Embeds and ranks with real model files; run as a child, for native code may end its process.

Usage: python real_embedding.py MAX_BATCH < JSON {path: {name: {"inputs"} or {"query", "documents"}}}; prints JSON
{path: {"can_generate", "can_split", name: {"vectors"}, {"scores"} or {"error", "details"}}}.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.embedding import EmbeddingQueue, pooling_of
from app.engine.llama import LlamaModel, embedder
from app.engine.messages import Embed, Embedded, EngineConfig, Failed, Rerank, Reranked
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.header import read_header

CONFIG, SETTING = EngineConfig(n_sequences=2), RuntimeSettings(1, False, False)


def _frame(name: str, case: dict[str, Any]) -> Embed | Rerank:
    if "query" in case:
        return Rerank(name, case["query"], tuple(case["documents"]))
    return Embed(name, tuple(item if isinstance(item, str) else tuple(item) for item in case["inputs"]))


def _result(event: Embedded | Reranked | Failed) -> dict[str, Any]:
    match event:
        case Embedded():
            return {"vectors": [np.frombuffer(vector, "<f4").tolist() for vector in event.vectors]}
        case Reranked():
            return {"scores": list(event.scores)}
        case Failed():
            return {"error": event.error.cause, "details": event.error.details}


def _run(path: Path, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    events: list[Embedded | Reranked | Failed] = []
    with (
        closing(LlamaModel(path, ON_HOST, False, lambda _fraction: True)) as model,
        closing(model.context(CONFIG, SETTING)) as backend,
    ):
        made = model.embedder(CONFIG, SETTING, pooling_of(read_header(path)))
        results["can_generate"], results["can_split"] = backend.facts.can_generate, made.facts.can_split
        with closing(EmbeddingQueue(backend, lambda: made, events.append)) as queue:
            for name, case in cases.items():
                queue.submit(_frame(name, case))
            while not queue.is_idle:
                queue.step()
    for event in events:
        results[event.request_id if isinstance(event, Failed) else event.call_id] = _result(event)
    return results


def main() -> None:
    embedder.n_batch_with_logits = lambda _n_vocab: int(sys.argv[1])
    print(json.dumps({path: _run(Path(path), cases) for path, cases in json.load(sys.stdin).items()}))


if __name__ == "__main__":
    main()
