"""Answers with a real model that drafts for itself; run as a child, for native code may end its process.

Usage: python real_draft.py MODEL.gguf [DRAFT.gguf]; prints JSON: the answers without and with drafts, and the draft
counters.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.load.auxiliary_loading import load_draft_model
from app.engine.loop.core import Engine, Event
from app.engine.messages import EngineConfig
from app.engine.request import Request, SamplingParams
from app.engine.speculative.cost_model import StepCost
from app.engine.speculative.draft_model import DraftModel
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST, LoadParameters

PROMPTS = ("What is a GGUF file?", "How do I quantize a model?", "Tell me about threads.")
SETTING = RuntimeSettings(1, False, False)


def free_steps() -> StepCost:
    return StepCost({1: 1.0, 64: 1.01})


def answers(backend: LlamaBackend, draft_model: DraftModel | None, temperature: float) -> dict[str, Any]:
    texts = dict.fromkeys(PROMPTS, "")

    def on_event(event: Event) -> None:
        texts[event.request_id] += getattr(event, "text", "")

    # A constant clock measures no costs: each draft stays as cheap as configured.
    engine = Engine(backend, on_event, None, free_steps(), [draft_model] if draft_model else [], clock=lambda: 0.0)
    for seed, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(temperature=temperature, seed=seed)
        engine.submit(Request(request_id=prompt, prompt=prompt, sampling=sampling, max_tokens=48, ignore_eos=True))
    while not engine.is_idle:
        engine.step()
        if draft_model is not None:
            draft_model.check_integrity()
    engine.close()
    for place in range(backend.facts.n_seq_max):
        backend.truncate(place, 0)
    counted = {name: asdict(tally) for name, tally in engine.counters.drafts.items()}
    return {"texts": texts, "drafts": counted, "n_steps": engine.counters.n_steps}


def on_host(_path: Path, _config: EngineConfig) -> LoadParameters:
    return ON_HOST


def main() -> None:
    path = sys.argv[1]
    config = EngineConfig(n_ctx=256, n_threads=1, n_sequences=3, draft_path=sys.argv[-1])
    with ExitStack() as owned:
        model = LlamaModel(Path(path), ON_HOST, False, lambda _fraction: True)
        owned.callback(model.close)
        backend = model.context(config, SETTING)
        owned.callback(backend.close)
        facts = replace(backend.facts, model_bytes=100 * backend.facts.model_bytes)  # its own size would never pay
        draft_model = load_draft_model(config, SETTING, model, facts, free_steps(), owned, on_host)
        assert draft_model is not None
        found = {
            f"{name} at {temperature}": answers(backend, drafting, temperature)
            for temperature in (0.0, 1.0)
            for name, drafting in (("plain", None), ("drafted", draft_model))
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
