"""Tokens per step of models that draft with their own layers or with a head, beside those of llama-server.

Run: `uv run python -m tests.bench.peer.draft_acceptance LLAMA_SERVER MODEL.gguf... [--heads HEAD.gguf...]`.
Both draft as many tokens in each step (a head that predicts a block a whole one), answer the same prompts of tokens
greedily, and take what the model agrees with, without a cost model and without other drafts. Compared are the answers
that are equal: batches of other shapes round differently, and at a tie the texts part. Exits with 1 where ours gets
less than 0.98 of the tokens per step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.table import Table

from app.engine.llama import HeadBackend, LlamaModel, LoadedHead
from app.engine.load.head_file import read_head
from app.engine.load.prediction_layers import mtp_layer_bytes
from app.engine.messages import EngineConfig
from app.engine.speculative.draft_heads import HeadKind, HeadSpec
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.header import Header
from quantizer.gguf.validation import validate_gguf
from tests.app.engine.llama.real_heads import drafted_answer
from tests.bench.peer.peer import serve_peer
from tests.bench.report import show

N_PROMPT, N_NEW, N_CTX = 12, 100, 128  # tiny models were made for 128
LEAST_SHARE = 0.98
_SPEC_TYPES = {
    HeadKind.EAGLE3: "draft-eagle3",
    HeadKind.DFLASH: "draft-dflash",
    HeadKind.DFLASH2: "draft-dflash",
    HeadKind.DSPARK: "draft-dspark",
}
_OWN_LAYERS = "draft-mtp"  # also those in a file of their own, and Gemma 4's assistant
_START_TIMEOUT_S = 120.0

Answer = tuple[list[int], int]  # its tokens, and the steps after the first


@dataclass(frozen=True, slots=True)
class Drafting:
    """A model, what drafts for it (None: its own layers), and how many tokens a step drafts."""

    model: Path
    header: Header
    head: Path | None
    spec: HeadSpec | None
    n_drafted: int

    @classmethod
    def of(cls, model: Path, head: Path | None, n_drafted: int) -> Drafting:
        header = validate_gguf(model)
        spec = None if head is None else read_head(validate_gguf(head), header)
        return cls(model, header, head, spec, spec.n_block if spec and spec.n_block > 1 else n_drafted)

    @property
    def name(self) -> str:
        return self.model.stem + (f" + {self.head.stem}" if self.head else "")


def per_step(answers: list[Answer]) -> float:
    return sum(len(tokens) - 1 for tokens, _ in answers) / max(1, sum(n_steps for _, n_steps in answers))


def ours(drafting: Drafting, prompts: list[list[int]]) -> list[Answer]:
    def loaded(path: Path, *, with_mtp: bool) -> LlamaModel:
        model = LlamaModel(path, ON_HOST, False, lambda _fraction: True, with_mtp=with_mtp)
        owned.callback(model.close)
        return model

    spec = drafting.spec
    with ExitStack() as owned:
        model = loaded(drafting.model, with_mtp=spec is None and mtp_layer_bytes(drafting.header) is not None)
        head = None
        if spec is not None and drafting.head is not None:
            head = LoadedHead(loaded(drafting.head, with_mtp=spec.kind is HeadKind.MTP), spec, drafting.head.stem)
        backend = model.context(EngineConfig(n_ctx=N_CTX, n_sequences=1), RuntimeSettings(1, False, False), head=head)
        owned.callback(backend.close)
        assert isinstance(backend, HeadBackend), f"{drafting.name} has no layers that draft"
        answers = [drafted_answer(backend, prompt, N_NEW, drafting.n_drafted) for prompt in prompts]
    return [(tokens[:N_NEW], n_steps) for tokens, n_steps in answers]


def peers(binary: Path, drafting: Drafting, prompts: list[list[int]]) -> list[Answer]:
    spec_type = _SPEC_TYPES.get(drafting.spec.kind, _OWN_LAYERS) if drafting.spec else _OWN_LAYERS
    flags = ("-c", str(N_CTX), "-np", "1", "-t", "1", "-fa", "off", "--no-warmup", "--spec-type", spec_type)
    flags += ("--spec-draft-n-max", str(drafting.n_drafted), "--spec-draft-p-min", "0")
    if drafting.head is not None:
        flags += ("--spec-draft-model", str(drafting.head))
    answers = []
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_peer(binary, drafting.model, Path(folder), flags) as (address, _),
        httpx.Client(base_url=address, timeout=120.0) as client,
    ):
        _wait(client, Path(folder))
        for prompt in prompts:
            request = {"prompt": prompt, "n_predict": N_NEW, "temperature": 0.0, "ignore_eos": True}
            reply: dict[str, Any] = client.post("/completion", json=request | {"return_tokens": True}).json()
            n_accepted = reply["timings"].get("draft_n_accepted", 0)
            answers.append((reply["tokens"], len(reply["tokens"]) - 1 - n_accepted))
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
    parser.add_argument("--heads", type=Path, nargs="+", default=[None], help="that belong to the models")
    parser.add_argument("--drafted", type=int, default=3, help="tokens that each step drafts (3)")
    parser.add_argument("--prompts", type=int, default=16, help="how many (16)")
    options = parser.parse_args()
    prompts = np.random.default_rng(0).integers(0, 256, (options.prompts, N_PROMPT)).tolist()
    made = Table(box=None, pad_edge=False)
    for name in ("model", "tokens per step", "llama-server's", "share", "equal answers"):
        made.add_column(name, justify="left" if name == "model" else "right")
    is_less = False
    for model, head in product(options.models, options.heads):
        drafting = Drafting.of(model, head, options.drafted)
        pairs = zip(ours(drafting, prompts), peers(options.server, drafting, prompts), strict=True)
        equal = [pair for pair in pairs if pair[0][0] == pair[1][0]]
        rates = [per_step([pair[side] for pair in equal]) for side in range(2)]
        share = rates[0] / rates[1] if equal else 0.0
        is_less |= share < LEAST_SHARE
        figures = [*(f"{rate:.3f}" for rate in rates), f"{share:.3f}", f"{len(equal)}/{len(prompts)}"]
        made.add_row(drafting.name, *figures)
    show(made)
    sys.exit(is_less)


if __name__ == "__main__":
    main()
