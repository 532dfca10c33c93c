"""How many tokens a step of verification gives with each kind of draft head, beside llama-server with the same files.

    uv run python tests/bench/models/tiny_heads.py FOLDER
    uv run python tests/bench/peer/head_acceptance.py llama.cpp/build/bin/llama-server FOLDER [--kinds dflash2]

Both draft as many tokens in each step (a whole block, or 4) and verify them greedily, without a cost model and without
other drafts. Exits with 1 where ours gets less than 0.98 of the peer's tokens a step, or where more than a tenth of the
answers differ (likeliest tokens that are as good as equal may go either way).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.table import Table

from app.engine.llama import HeadBackend, LlamaModel, LoadedHead
from app.engine.load.head_file import validate_head
from app.engine.messages import EngineConfig
from app.engine.speculative.draft_heads import HeadKind, HeadSpec
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.header import read_header
from tests.app.engine.llama.real_heads import N_DRAFTED, drafted_answer
from tests.bench.peer.peer import serve_peer
from tests.bench.report import show

LEAST_RATIO, MOST_DIFFERENT = 0.98, 0.1
N_PROMPT, N_NEW = 12, 80
_SPEC_TYPES = {
    HeadKind.EAGLE3: "draft-eagle3",
    HeadKind.DFLASH: "draft-dflash",
    HeadKind.DFLASH2: "draft-dflash",
    HeadKind.DSPARK: "draft-dspark",
}

Answer = tuple[list[int], int]  # its tokens, and the steps after the prompt that gave them


def ours(model_path: Path, head_path: Path, prompts: list[list[int]]) -> list[Answer]:
    spec = validate_head(head_path, read_header(model_path))
    config, setting = EngineConfig(n_ctx=256, n_threads=1, n_sequences=1), RuntimeSettings(1, False, False)
    with ExitStack() as owned:
        model, head = (LlamaModel(path, ON_HOST, False, lambda _fraction: True) for path in (model_path, head_path))
        owned.callback(model.close)
        owned.callback(head.close)
        backend = model.context(config, setting, head=LoadedHead(head, spec, "key"))
        owned.callback(backend.close)
        assert isinstance(backend, HeadBackend)
        return [drafted_answer(backend, prompt, N_NEW, _n_drafted(spec)) for prompt in prompts]


def theirs(binary: Path, model: Path, head: Path, prompts: list[list[int]]) -> list[Answer]:
    spec = validate_head(head, read_header(model))
    flags = (
        *("-md", str(head), "--spec-type", _SPEC_TYPES[spec.kind], "--spec-draft-n-max", str(_n_drafted(spec))),
        *("-c", "256", "-np", "1", "-t", "1", "-fa", "off", "-ngl", "0"),
    )
    with tempfile.TemporaryDirectory() as folder, serve_peer(binary, model, Path(folder), flags) as (address, _):
        transport = httpx.HTTPTransport(retries=20)  # while the server starts it takes no connection
        with httpx.Client(base_url=address, timeout=120.0, transport=transport) as http:
            while http.get("/health").status_code != httpx.codes.OK:
                time.sleep(0.1)
            return [_answered(http, prompt) for prompt in prompts]


def _n_drafted(spec: HeadSpec) -> int:
    return spec.n_block if spec.n_block > 1 else N_DRAFTED


def _answered(http: httpx.Client, prompt: list[int]) -> Answer:
    asked = {
        "prompt": prompt,
        "n_predict": N_NEW,
        "temperature": 0.0,
        "cache_prompt": False,
        "ignore_eos": True,
        "return_tokens": True,
    }
    answer: dict[str, Any] = http.post("/completion", json=asked).raise_for_status().json()
    timings = answer["timings"]
    # The prompt's own step gives the first token, each later one a token beside those that it accepts.
    return answer["tokens"], timings["predicted_n"] - 1 - timings.get("draft_n_accepted", 0)


def tokens_per_step(answers: list[Answer]) -> float:
    return sum(len(tokens) - 1 for tokens, _ in answers) / sum(n_steps for _, n_steps in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", type=Path)
    parser.add_argument("folder", type=Path, help="with target.gguf and a KIND.gguf for each kind of head")
    parser.add_argument("--kinds", nargs="+", help="of those there (all)")
    parser.add_argument("--count", type=int, default=50, help="how many answers of each (50)")
    options = parser.parse_args()
    prompts = np.random.default_rng(0).integers(0, 256, (options.count, N_PROMPT)).tolist()
    made = Table(box=None, pad_edge=False)
    for name in ("head", "tokens a step", "llama-server", "×", "equal answers"):
        made.add_column(name, justify="left" if name == "head" else "right")
    has_failed = False
    there = sorted(path.stem for path in options.folder.glob("*.gguf") if path.stem != "target")
    for kind in options.kinds or there:
        model, head = options.folder / "target.gguf", options.folder / f"{kind}.gguf"
        own, peer = ours(model, head, prompts), theirs(options.server, model, head, prompts)
        ratio = tokens_per_step(own) / tokens_per_step(peer)
        n_equal = sum(one[:N_NEW] == other[:N_NEW] for (one, _), (other, _) in zip(own, peer, strict=True))
        has_failed |= ratio < LEAST_RATIO or n_equal < (1 - MOST_DIFFERENT) * len(prompts)
        figures = f"{tokens_per_step(own):.3f}", f"{tokens_per_step(peer):.3f}", f"{ratio:.3f}"
        made.add_row(kind, *figures, f"{n_equal} of {len(prompts)}")
    show(made)
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
