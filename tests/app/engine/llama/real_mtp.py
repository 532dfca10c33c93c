"""Answers of a real model that drafts with its own prediction layer; run as a child, as native code may abort.

Usage: python real_mtp.py MODEL.gguf; prints JSON: answers without and with drafts, and the layer's logits after a
text that was computed in several ways.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.backend import Chunk
from app.engine.llama import LlamaModel, MtpBackend
from app.engine.load.auxiliary_models import mtp_layer_bytes
from app.engine.load.loading import make_draft_head
from app.engine.loop.core import Engine, Event
from app.engine.protocol.messages import EngineConfig
from app.engine.request import Request, SamplingParams
from app.engine.speculative.draft_source import DraftSource
from app.engine.speculative.step_cost import StepCost
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.header import read_header

PROMPTS = ("What is a GGUF file?", "How do I quantize a model?", "Tell me about threads.", "What is a GGUF header?")
CONFIG = EngineConfig(n_ctx=64, n_cells=256, n_threads=1, n_sequences=3)  # answers fill it, and go on
SETTING = RuntimeSettings(1, False, False)
TEXT = list(b"how a text is cut must not matter")


def free_steps() -> StepCost:
    return StepCost({1: 1.0, 64: 1.01})


def answers(backend: MtpBackend, sources: list[DraftSource], temperature: float) -> dict[str, Any]:
    texts = dict.fromkeys(PROMPTS, "")

    def collect(event: Event) -> None:
        texts[event.request_id] += getattr(event, "text", "")

    # With a constant clock no costs are measured: each draft stays as cheap as given.
    engine = Engine(backend, collect, None, free_steps(), sources, clock=lambda: 0.0)
    for seed, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(temperature=temperature, seed=seed)
        engine.submit(
            Request(
                request_id=prompt,
                prompt=prompt,
                sampling=sampling,
                max_tokens=48,
                ignore_eos=True,
                context_shift=backend.facts.supports_shift,
            )
        )
    while not engine.is_idle:
        engine.step()
    engine.close()
    forget_all(backend)
    assert engine.counters.n_finished == len(PROMPTS)
    counted = {name: asdict(tally) for name, tally in engine.counters.drafts.items()}
    return {"texts": texts, "drafts": counted, "n_steps": engine.counters.n_steps}


def forget_all(backend: MtpBackend) -> None:
    for sequence_id in range(backend.facts.n_seq_max):
        backend.truncate(sequence_id, 0)


def compute(backend: MtpBackend, sequence_id: int, begin: int, end: int, n_logits: int = 1) -> None:
    backend.decode([Chunk(sequence_id, begin, TEXT[begin:end], n_logits)])


def at_once(backend: MtpBackend) -> int:
    compute(backend, 0, 0, len(TEXT) - 1)
    return 0


def in_pieces(backend: MtpBackend) -> int:
    for begin in range(0, len(TEXT) - 1, 5):
        compute(backend, 0, begin, min(begin + 5, len(TEXT) - 1))
    return 0


def beside_another(backend: MtpBackend) -> int:
    for begin in range(0, len(TEXT) - 1, 8):
        tokens = TEXT[begin : min(begin + 8, len(TEXT) - 1)]
        backend.decode([Chunk(1, begin, tokens[::-1], 1), Chunk(0, begin, tokens, 1)])
    return 0


def with_a_refused_draft(backend: MtpBackend) -> int:
    compute(backend, 0, 0, 10)
    backend.hold(0)
    for i in range(4):
        backend.mtp.predict([Chunk(0, 10 + i, [65 + i], 1)])
    backend.decode([Chunk(0, 10, [*TEXT[10:13], 7, 8, 9], 6)])
    compute(backend, 0, backend.truncate(0, 13), len(TEXT) - 1)
    return 0


def with_a_shared_begin(backend: MtpBackend) -> int:
    compute(backend, 1, 0, 20)
    backend.share_cells(1, 2, 0, 20)
    compute(backend, 1, 20, 30)
    compute(backend, 2, 20, len(TEXT) - 1)
    return 2


def saved_and_restored(backend: MtpBackend) -> int:
    compute(backend, 0, 0, 20)
    state = backend.save_state(0)
    assert len(state) == backend.state_bytes(0)
    backend.truncate(0, 0)
    assert backend.restore_state(1, state)
    compute(backend, 1, 20, len(TEXT) - 1)
    return 1


def with_a_begin_that_the_head_lost(backend: MtpBackend) -> int:
    compute(backend, 0, 0, 20)
    backend.mtp.truncate(0, 0)
    compute(backend, 0, 20, len(TEXT) - 1)
    return 0


WAYS = (
    at_once,
    in_pieces,
    beside_another,
    with_a_refused_draft,
    with_a_shared_begin,
    saved_and_restored,
    with_a_begin_that_the_head_lost,
)


def logits_after(backend: MtpBackend, sequence_id: int) -> list[float]:
    """Return the logits of the second token from the end of the text, which the head alone has not computed."""
    position = len(TEXT) - 1
    (first,) = backend.mtp.predict([Chunk(sequence_id, position, TEXT[position:], 1)])
    (second,) = backend.mtp.predict([Chunk(sequence_id, position + 1, [int(first.argmax())], 1)])
    forget_all(backend)
    return [float(logit) for logit in np.concatenate([first, second])]


def main() -> None:
    path = Path(sys.argv[1])
    layer = mtp_layer_bytes(read_header(path))
    with ExitStack() as owned:
        model = LlamaModel(path, ON_HOST, False, lambda _fraction: True, with_mtp=layer is not None)
        owned.callback(model.close)
        backend = model.context(CONFIG, SETTING)
        owned.callback(backend.close)
        assert isinstance(backend, MtpBackend)
        head = make_draft_head(backend, layer, free_steps())
        assert head is not None
        head._cost._share_of_bytes = 0.01  # two layers make no cheap head
        found = {
            f"{name} at {temperature}": answers(backend, sources, temperature)
            for temperature in (0.0, 1.0)
            for name, sources in (("plain", []), ("drafted", [head]))
        }
        logits = {way.__name__: logits_after(backend, way(backend)) for way in WAYS}
    print(json.dumps({"answers": found, "logits": logits}))


if __name__ == "__main__":
    main()
