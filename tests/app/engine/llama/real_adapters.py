"""Runs a real model under adapters and a control vector; run as a child, for native code may end its process.

Usage: python real_adapters.py MODEL ADAPTER ADAPTER VECTOR; prints JSON {"shifts": {what: largest change of a logit},
"answers": {request: [text, cached tokens]}, "alone": {set: text}}, where requests come in two rounds.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.loop.core import Engine
from app.engine.messages import EngineConfig, Failed, Finished, Output
from app.engine.request import NO_ADAPTERS, Adapter, AdapterSet, Request, SamplingParams
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.adapters import read_control_vector, validate_adapter

CONFIG, SETTING = EngineConfig(n_ctx=512, n_sequences=4), RuntimeSettings(1, False, False)
PROMPT = "How do I make a model smaller, and what does it cost to do so on a machine like mine?"
LORAS: dict[str, tuple[tuple[int | str, float], ...]] = {
    "none": (),
    "zero": (("first", 0.0),),
    "first": (("first", 1.0),),
    "half": (("first", 0.5),),
    "second": ((1, 1.0),),
}
SETS: dict[str, AdapterSet] = {"none": (), "first": (("k1", 1.0),), "half": (("k1", 0.5),), "second": (("k2", 1.0),)}


def _logits(backend: LlamaBackend, adapters: AdapterSet = NO_ADAPTERS) -> NDArray[np.float32]:
    backend.set_adapters(adapters)
    tokens = backend.tokenize(PROMPT, True, True)
    backend.decode([Chunk(0, 0, tokens, 1)])
    logits = backend.logits(len(tokens) - 1)
    backend.truncate(0, 0)
    return logits


def _request(name: str, lora: str) -> Request:
    greedy = SamplingParams(temperature=0.0)
    return Request(request_id=name, prompt=PROMPT, sampling=greedy, max_tokens=12, ignore_eos=True, lora=LORAS[lora])


def _answer(backend: LlamaBackend, *rounds: list[Request]) -> dict[str, tuple[str, int]]:
    """Answer the requests of each round together; return their texts and cached tokens. The cache begins empty."""
    for sequence_id in range(backend.facts.n_seq_max):
        backend.truncate(sequence_id, 0)
    events: list[Output | Finished | Failed] = []
    engine = Engine(backend, events.append)
    for requests in rounds:
        for request in requests:
            engine.submit(request)
        while not engine.is_idle:
            engine.step()
    engine.close()
    texts = {request.request_id: "" for requests in rounds for request in requests}
    for event in events:
        if isinstance(event, Output):
            texts[event.request_id] += event.text
    ends = {event.request_id: event for event in events if isinstance(event, Finished)}
    return {name: (text, ends[name].usage.n_cached_tokens) for name, text in texts.items()}


def main() -> None:
    path, first, second, vector = map(Path, sys.argv[1:])
    for adapter in (first, second):
        validate_adapter(adapter, path)
    with closing(LlamaModel(path, ON_HOST, False, lambda _fraction: True)) as model:
        with closing(model.context(CONFIG, SETTING)) as backend:
            plain = _logits(backend)
        model.load_adapters({Adapter("first", "k1"): first, Adapter("second", "k2"): second}, None)
        with closing(model.context(CONFIG, SETTING)) as backend:
            under = {name: _logits(backend, adapters) for name, adapters in SETS.items()}
            under["none again"] = _logits(backend)
            alone = {name: _answer(backend, [_request("a", name)])["a"][0] for name in LORAS}
            answers = _answer(backend, *([_request(f"{name} {index}", name) for name in LORAS] for index in range(2)))
        model.load_adapters({}, read_control_vector(vector, path))
        with closing(model.context(CONFIG, SETTING)) as backend:
            under["control vector"] = _logits(backend)
    shifts = {name: float(np.abs(logits - plain).max()) for name, logits in under.items()}
    print(json.dumps({"shifts": shifts, "answers": answers, "alone": alone}))


if __name__ == "__main__":
    main()
