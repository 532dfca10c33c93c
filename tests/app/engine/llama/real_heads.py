"""Answers of a real model that drafts with a head; run as a child, as native code may abort.

Usage: python -m tests.app.engine.llama.real_heads MODEL.gguf HEAD.gguf; prints JSON: answers without and with drafts,
how many tokens of each draft are right, and the head's drafts after a text that was computed in several ways.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.backend import Chunk
from app.engine.llama import (
    AutoregressiveContext,
    BlockContext,
    HeadBackend,
    LlamaModel,
    LoadedHead,
    SelectorContext,
)
from app.engine.load.auxiliary_loading import make_head_source
from app.engine.load.head_file import read_head
from app.engine.messages import EngineConfig
from app.engine.speculative.draft_heads import HeadKind
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.header import read_header
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

CONFIG = EngineConfig(n_ctx=128, n_cells=512, n_threads=1, n_sequences=3)
SETTING = RuntimeSettings(1, False, False)
N_DRAFTED = 4
N_PROMPTS, N_NEW = 6, 80


def draft(backend: HeadBackend, sequence_id: int, position: int, token: int, n_drafted: int = N_DRAFTED) -> list[int]:
    """Return the tokens that the head drafts after `token`, the newest, which the model has not computed."""
    head, tokens = backend.head, [token]
    if isinstance(head, BlockContext):
        (block,) = head.predict_blocks([Chunk(sequence_id, position, [token], 1)])
        return [item.token for item in block[:n_drafted]]
    assert isinstance(head, AutoregressiveContext)
    for i in range(n_drafted):
        predicted = head.predict([Chunk(sequence_id, position + i, tokens[-1:], 1)])
        tokens += [int(logits.argmax()) for logits in predicted]  # none behind the last layer
    return tokens[1:]


def drafted_answer(
    backend: HeadBackend, prompt: list[int], n_new: int, n_drafted: int = N_DRAFTED
) -> tuple[list[int], int]:
    """Return the greedy tokens after `prompt`, at least `n_new`, and the steps that verified a draft of the head."""
    backend.decode([Chunk(0, 0, prompt, 1)])
    answer, n_steps = [int(backend.logits(len(prompt) - 1).argmax())], 0
    while len(answer) < n_new:
        position = len(prompt) + len(answer) - 1
        drafted = draft(backend, 0, position, answer[-1], n_drafted)
        backend.hold(0)
        backend.decode([Chunk(0, position, [answer[-1], *drafted], 1 + len(drafted))])
        own = [int(backend.logits(row).argmax()) for row in range(1 + len(drafted))]
        n_same = next((i for i, token in enumerate(drafted) if token != own[i]), len(drafted))
        answer += own[: n_same + 1]
        n_steps += 1
        known = [*prompt, *answer[:-1]]
        if (n_left := backend.truncate(0, len(known))) < len(known):  # a state went back further
            backend.decode([Chunk(0, n_left, known[n_left:], 1)])
    backend.truncate(0, 0)
    return answer, n_steps


def mean_accepted(backend: HeadBackend) -> float:
    """Return how many tokens of a draft are the model's own, with drafts verified and rejected as in an answer."""
    prompts = np.random.default_rng(0).integers(0, 256, (N_PROMPTS, 12)).tolist()
    answers = [drafted_answer(backend, prompt, N_NEW) for prompt in prompts]
    n_steps = sum(n for _, n in answers)
    return sum(len(tokens) - 1 for tokens, _ in answers) / n_steps - 1


def with_drafts_in_between(backend: HeadBackend) -> int:
    compute(backend, 0, 0, 10)
    draft(backend, 0, 10, 65)
    draft(backend, 0, 10, TEXT[10])
    backend.decode([Chunk(0, 10, [*TEXT[10:13], 7, 8, 9], 6)])
    backend.truncate(0, 13)
    draft(backend, 0, 13, TEXT[13])
    compute(backend, 0, 13, len(TEXT) - 1)
    return 0


def with_a_begin_that_the_head_lost(backend: HeadBackend) -> int:
    compute(backend, 0, 0, 20)
    backend.head.truncate(0, 0)
    compute(backend, 0, 20, len(TEXT) - 1)
    return 0


WAYS = (
    at_once,
    in_pieces,
    beside_another,
    with_drafts_in_between,
    with_a_shared_begin,
    saved_and_restored,
    with_a_begin_that_the_head_lost,
)


def logits_after(backend: HeadBackend, sequence_id: int) -> list[float]:
    """Return the head's logits of the tokens after the text, or the scores of those that it returns."""
    head, position = backend.head, len(TEXT) - 1
    chunk = Chunk(sequence_id, position, TEXT[position:], 1)
    if isinstance(head, AutoregressiveContext):
        (first,) = head.predict([chunk])
        (second,) = head.predict([Chunk(sequence_id, position + 1, [int(first.argmax())], 1)])
        rows = [first, second]
    else:
        assert isinstance(head, BlockContext)
        head.predict_blocks([chunk])
        if isinstance(head, SelectorContext):
            rows = [*head.lattice(1, 1 + head.n_block)]
        else:
            rows = [head.logits(row) for row in range(1, 1 + head.n_block - 1)]
    forget_all(backend)
    logits = np.concatenate(rows)
    return [float(logit) for logit in logits[np.isfinite(logits)]]


def measured(path: Path, head_path: Path) -> dict[str, Any]:
    """Return what the model at `path` answered with its head, and what that predicted."""
    spec = read_head(read_header(head_path), read_header(path))
    with ExitStack() as owned:
        model = LlamaModel(path, ON_HOST, False, lambda _fraction: True)
        owned.callback(model.close)
        has_layers = spec.kind is HeadKind.MTP
        head = LlamaModel(head_path, ON_HOST, False, lambda _fraction: True, with_mtp=has_layers)
        owned.callback(head.close)
        backend = model.context(CONFIG, SETTING, head=LoadedHead(head, spec, "key"))
        owned.callback(backend.close)
        assert isinstance(backend, HeadBackend)
        source: Any = make_head_source(backend, free_steps())
        source._cost._share_of_bytes = 0.01  # a tiny model makes no cheap head
        found = {
            f"{name} at {temperature}": answers(backend, sources, temperature, max_tokens=120)
            for temperature in (0.0, 1.0)
            for name, sources in (("plain", []), ("drafted", [source]))
        }
        logits = {way.__name__: logits_after(backend, way(backend)) for way in WAYS}
        accepted = mean_accepted(backend)
    return {"answers": found, "logits": logits, "accepted": accepted, "name": source.name}


if __name__ == "__main__":
    model_path, *head_paths = map(Path, sys.argv[1:])
    for each in head_paths:
        print(json.dumps(measured(model_path, each)))
