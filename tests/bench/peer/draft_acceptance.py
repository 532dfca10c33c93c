"""Tokens per step of models that draft with their own layers or with a head, beside those of llama-server.

Run: `uv run python -m tests.bench.peer.draft_acceptance LLAMA_SERVER MODEL.gguf... [--head HEAD.gguf] [--drafted 3]`.
Both draft as many tokens in each step, answer the same prompts of tokens greedily, and take what the model agrees with.
Compared are the answers that are equal: batches of other shapes round differently, and at a tie the texts part. Exits
with 1 where ours takes less than 0.98 of the tokens per step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.table import Table

from app.engine.backend import Chunk
from app.engine.llama import AutoregressiveContext, HeadBackend, LlamaModel, LoadedHead
from app.engine.load.head_file import read_head
from app.engine.load.prediction_layers import mtp_layer_bytes
from app.engine.messages import EngineConfig
from app.engine.speculative.draft_heads import HeadKind
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.validation import validate_gguf
from tests.bench.peer.peer import serve_peer
from tests.bench.report import show

N_PROMPTS, N_PROMPT, N_NEW, N_CTX = 16, 12, 100, 128  # tiny models were made for 128
LEAST_SHARE = 0.98
_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer, and the steps that it took after the first."""

    tokens: list[int]
    n_steps: int


def per_step(answers: list[Answer]) -> float:
    return sum(len(answer.tokens) - 1 for answer in answers) / max(1, sum(answer.n_steps for answer in answers))


def prompts() -> list[list[int]]:
    made: list[list[int]] = np.random.default_rng(0).integers(0, 256, (N_PROMPTS, N_PROMPT)).tolist()
    return made


def ours(path: Path, head_path: Path | None, n_drafted: int) -> list[Answer]:
    header, answers = validate_gguf(path), []
    with ExitStack() as owned:
        has_layers = head_path is None and mtp_layer_bytes(header) is not None
        model = LlamaModel(path, ON_HOST, False, lambda _fraction: True, with_mtp=has_layers)
        owned.callback(model.close)
        head = None
        if head_path is not None:
            spec = read_head(validate_gguf(head_path), header)
            has_layers = spec.kind is HeadKind.MTP
            weights = LlamaModel(head_path, ON_HOST, False, lambda _fraction: True, with_mtp=has_layers)
            owned.callback(weights.close)
            head = LoadedHead(weights, spec, head_path.stem)
        backend = model.context(EngineConfig(n_ctx=N_CTX, n_sequences=1), RuntimeSettings(1, False, False), head=head)
        owned.callback(backend.close)
        assert isinstance(backend, HeadBackend), f"{path.name} has no layers that draft"
        for prompt in prompts():
            backend.decode([Chunk(0, 0, prompt, 1)])
            answer, n_steps = [int(backend.logits(len(prompt) - 1).argmax())], 0
            while len(answer) < N_NEW:
                position = len(prompt) + len(answer) - 1
                drafted = [*_drafted(backend, position, answer[-1], min(n_drafted, N_NEW - len(answer)))]
                backend.hold(0)
                backend.decode([Chunk(0, position, [answer[-1], *drafted], 1 + len(drafted))])
                own = [int(backend.logits(row).argmax()) for row in range(1 + len(drafted))]
                n_same = next((i for i, token in enumerate(drafted) if token != own[i]), len(drafted))
                answer += own[: n_same + 1]
                n_steps += 1
                _go_back(backend, prompt, answer)
            answers.append(Answer(answer[:N_NEW], n_steps))
            backend.truncate(0, 0)
    return answers


def _drafted(backend: HeadBackend, position: int, newest: int, n_most: int) -> Iterator[int]:
    assert isinstance(backend.head, AutoregressiveContext)
    for index in range(n_most):
        logits = backend.head.predict([Chunk(0, position + index, [newest], 1)])
        if not logits:
            return
        newest = int(logits[0].argmax())
        yield newest


def _go_back(backend: HeadBackend, prompt: list[int], answer: list[int]) -> None:
    """Leave the prompt and the answer without its newest token; a state that went back further computes them again."""
    tokens = [*prompt, *answer[:-1]]
    n_left = backend.truncate(0, len(tokens))
    if n_left < len(tokens):
        backend.decode([Chunk(0, n_left, tokens[n_left:], 1)])


def peers(binary: Path, path: Path, head_path: Path | None, n_drafted: int) -> list[Answer]:
    flags = ("-c", str(N_CTX), "-np", "1", "-t", "1", "-fa", "off", "--no-warmup", "--spec-type", "draft-mtp")
    flags += ("--spec-draft-n-max", str(n_drafted), "--spec-draft-p-min", "0")
    if head_path is not None:
        flags += ("--spec-draft-model", str(head_path))
    answers = []
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_peer(binary, path, Path(folder), flags) as (address, _),
        httpx.Client(base_url=address, timeout=120.0) as client,
    ):
        _wait(client, Path(folder))
        for prompt in prompts():
            request = {"prompt": prompt, "n_predict": N_NEW, "temperature": 0.0, "ignore_eos": True}
            reply: dict[str, Any] = client.post("/completion", json=request | {"return_tokens": True}).json()
            n_accepted = reply["timings"].get("draft_n_accepted", 0)
            answers.append(Answer(reply["tokens"], len(reply["tokens"]) - 1 - n_accepted))
    return answers


def _wait(client: httpx.Client, folder: Path) -> None:
    for _ in range(int(_START_TIMEOUT_S / 0.2)):
        try:
            if client.get("/health").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit((folder / "llama-server.log").read_text(errors="replace")[-2000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", type=Path, help="llama-server of the same llama.cpp")
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--head", type=Path, help="a head that belongs to the models")
    parser.add_argument("--drafted", type=int, default=3, help="tokens that each step drafts (3)")
    options = parser.parse_args()
    made = Table(box=None, pad_edge=False)
    for name in ("model", "tokens per step", "llama-server's", "share", "equal answers"):
        made.add_column(name, justify="left" if name == "model" else "right")
    is_less = False
    for path in options.models:
        own, other = (
            ours(path, options.head, options.drafted),
            peers(options.server, path, options.head, options.drafted),
        )
        equal = [pair for pair in zip(own, other, strict=True) if pair[0].tokens == pair[1].tokens]
        rates = [per_step([pair[side] for pair in equal]) for side in range(2)]
        share = rates[0] / rates[1] if equal else 0.0
        is_less |= share < LEAST_SHARE
        made.add_row(path.stem, *(f"{rate:.3f}" for rate in rates), f"{share:.3f}", f"{len(equal)}/{N_PROMPTS}")
    show(made)
    sys.exit(is_less)


if __name__ == "__main__":
    main()
