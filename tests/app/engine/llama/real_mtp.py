"""Answers of a real model that drafts with its own prediction layer; run as a child, as native code may abort.

Usage: python -m tests.app.engine.llama.real_mtp MODEL.gguf; prints JSON: answers without and with drafts, and the
layer's logits after a text that was computed in several ways.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.backend import Chunk
from app.engine.llama import HeadBackend, LlamaModel, MtpContext, buffer_bytes_by_device, native_log
from app.engine.load.auxiliary_loading import make_head_source
from app.engine.load.prediction_layers import mtp_layer_bytes
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.footprint.auxiliary_models import AuxiliaryModels
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.validation import tensors_of
from tests.app.engine.llama.ways_to_compute import (
    TEXT,
    answers,
    at_once,
    beside_another,
    compute,
    forget_all,
    free_steps,
    in_pieces,
    saved_and_restored,
    with_a_shared_begin,
)

CONFIG = EngineConfig(n_ctx=64, n_cells=256, n_threads=1, n_sequences=3)  # answers fill it, and go on
LONG = EngineConfig(n_ctx=8192, n_cells=16384, n_threads=1, n_sequences=2)
SETTING = RuntimeSettings(1, False, False)


def mtp_of(backend: HeadBackend) -> MtpContext:
    assert isinstance(backend.head, MtpContext)
    return backend.head


def with_a_refused_draft(backend: HeadBackend) -> int:
    compute(backend, 0, 0, 10)
    backend.hold(0)
    for i in range(4):
        mtp_of(backend).predict([Chunk(0, 10 + i, [65 + i], 1)])
    backend.decode([Chunk(0, 10, [*TEXT[10:13], 7, 8, 9], 6)])
    compute(backend, 0, backend.truncate(0, 13), len(TEXT) - 1)
    return 0


def with_a_begin_that_the_head_lost(backend: HeadBackend) -> int:
    compute(backend, 0, 0, 20)
    mtp_of(backend).truncate(0, 0)
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


def n_waiting_by_step(backend: HeadBackend) -> list[int]:
    """Return how many tokens the layer has not computed after each step of the model, and after a draft."""
    counts = []
    for position in range(3):
        compute(backend, 0, position, position + 1)
        counts.append(mtp_of(backend).n_waiting([0]))
    mtp_of(backend).predict([Chunk(0, 3, TEXT[3:4], 1)])
    counts.append(mtp_of(backend).n_waiting([0]))
    forget_all(backend)
    return counts


def n_waiting_in_an_answer(backend: HeadBackend) -> list[int]:
    """Return how many tokens the layer has not computed after a prompt of a batch, and the most in the answer."""
    head = mtp_of(backend)
    n_rows, head._n_rows = head._n_rows, 8
    compute(backend, 0, 0, 8)
    after_prompt, counts = head.n_waiting([0]), []
    for position in range(8, 8 + 4 * 8):
        backend.decode([Chunk(0, position, TEXT[:1], 1)])
        counts.append(head.n_waiting([0]))
    forget_all(backend)
    head._n_rows = n_rows
    return [after_prompt, max(counts), counts[-1]]


def logits_after(backend: HeadBackend, sequence_id: int) -> list[float]:
    """Return the logits of the second token from the end of the text, which the head alone has not computed."""
    position = len(TEXT) - 1
    (first,) = mtp_of(backend).predict([Chunk(sequence_id, position, TEXT[position:], 1)])
    (second,) = mtp_of(backend).predict([Chunk(sequence_id, position + 1, [int(first.argmax())], 1)])
    forget_all(backend)
    return [float(logit) for logit in np.concatenate([first, second])]


def cache_bytes(model: LlamaModel, header: Header) -> tuple[int, int]:
    """Return the planned bytes of all caches, and those that llama.cpp allocates, which its log rounds."""
    planned = PlannedModel(header, tensors_of(header), auxiliary=AuxiliaryModels(has_mtp_layer=True)).profile(
        RunConfig(n_ctx=LONG.n_ctx, n_cells=LONG.n_cells, n_sequences=LONG.n_sequences, is_fused=False)
    )
    log = native_log()
    log.take_buffers()
    model.context(LONG, SETTING).close()
    allocated = buffer_bytes_by_device(log.take_buffers()).values()
    return planned.cache_bytes, sum(held.cache_bytes for held in allocated)


def measured(path: Path) -> dict[str, Any]:
    """Return what the model at `path` answered and predicted."""
    header = read_header(path)
    layer = mtp_layer_bytes(header)
    with ExitStack() as owned:
        model = LlamaModel(path, ON_HOST, False, lambda _fraction: True, with_mtp=layer is not None)
        owned.callback(model.close)
        backend = model.context(CONFIG, SETTING)
        owned.callback(backend.close)
        assert isinstance(backend, HeadBackend)
        head = make_head_source(backend, free_steps(), layer)
        assert head is not None
        head._cost._share_of_bytes = 0.01  # two layers make no cheap head
        found = {
            f"{name} at {temperature}": answers(backend, sources, temperature, max_tokens=48)
            for temperature in (0.0, 1.0)
            for name, sources in (("plain", []), ("drafted", [head]))
        }
        logits = {way.__name__: logits_after(backend, way(backend)) for way in WAYS}
        n_waiting, in_an_answer = n_waiting_by_step(backend), n_waiting_in_an_answer(backend)
        in_memory = cache_bytes(model, header)
    return {
        "answers": found,
        "logits": logits,
        "n_waiting": n_waiting,
        "n_waiting_in_an_answer": in_an_answer,
        "cache_bytes": in_memory,
    }


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps(measured(Path(name))))
