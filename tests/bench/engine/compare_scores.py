"""Whether a score depends on how it was computed: random workloads with probabilities, against those of alone.py.

Run: `uv run python tests/bench/engine/compare_scores.py MODEL.gguf [--kv-type f32] [--flash] [--reference F32.gguf]`.
The engine batches, chunks, reuses prefixes, drafts, evicts and restarts from its store; every answer comes with its
probabilities, and every second prompt too (`echo`). With weights and a cache of F32 only the order of sums differs, so
that a difference beyond --limit is a fault of ours. Quantized activations and a cache of F16 magnify that order: the
differences then are those of kernels, to be compared with the distance of the model from the reference. Exits with 1
when a score differs by more than --limit from that of a single batch computed alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from app.engine.llama import LlamaModel
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.validation import validate_gguf
from tests.bench.alone import Alone
from tests.bench.playing import PlayedAnswer, Player
from tests.bench.random_workload import random_workload
from tests.bench.report import show

__all__ = ["Scores", "run"]

N_CTX = 512
REFERENCE = RuntimeSettings(1, flash_attention=False, extra_buffers=False, kv_type="f32")
_COLUMNS = ("texts", "apart", "scores", "equal", "mean", "largest", "signed mean", "mean of worst text")
_SAME = 1e-6  # nats: logits have 32 bits

Texts: TypeAlias = list[NDArray[np.float64]]


@dataclass(slots=True)
class Scores:
    """Scores of the same texts, in nats: by the engine, by the model alone, and by a reference."""

    engine: Texts = field(default_factory=list)
    alone: Texts = field(default_factory=list)
    reference: Texts = field(default_factory=list)

    def add(self, played: PlayedAnswer, alone: Alone, reference: Alone | None) -> None:
        """Add the scores of one request: of its answer, and of its prompt if that is echoed."""
        scored = np.array([entry.logprob for entry in played.logprobs if entry.logprob is not None])
        if not len(scored):
            return
        n_unscored = 0 if played.is_echoed else len(played.prompt)
        tokens = [*played.prompt, *played.tokens][: n_unscored + len(played.logprobs)]
        self.engine.append(scored)
        self.alone.append(alone.scores(tokens)[-len(scored) :])
        if reference is not None:
            self.reference.append(reference.scores(tokens)[-len(scored) :])

    @property
    def furthest(self) -> float:
        return max(float(np.abs(apart).max()) for apart in _apart(self.engine, self.alone))


def run(path: Path, seeds: range, setting: RuntimeSettings, reference_path: Path | None) -> Scores:
    """Play the workloads of `seeds` on the model at `path` and collect every score."""
    scores = Scores()
    with ExitStack() as owned:
        model = _loaded(path, setting, owned)
        alone = _alone(model, setting, owned)
        reference = None
        if reference_path is not None:
            reference = _alone(_loaded(reference_path, REFERENCE, owned), REFERENCE, owned)
        for seed in seeds:
            workload = random_workload(seed, N_CTX, alone.tokenize)
            with tempfile.TemporaryDirectory() as folder:
                for played in Player(model, setting, workload, N_CTX, Path(folder), with_scores=True).play():
                    scores.add(played, alone, reference)
    return scores


def table(scores: Scores) -> Table:
    """Return a row for each pair of sources."""
    made = Table(box=None, pad_edge=False)
    made.add_column("nats a token", no_wrap=True)
    for name in _COLUMNS:
        made.add_column(name, justify="right")
    made.add_row("engine, against alone", *_row(_apart(scores.engine, scores.alone)))
    if scores.reference:
        made.add_row("engine, against the reference", *_row(_apart(scores.engine, scores.reference)))
        made.add_row("alone, against the reference", *_row(_apart(scores.alone, scores.reference)))
    return made


def _row(apart: Texts) -> Sequence[str]:
    every = np.concatenate(apart)
    return (
        str(len(apart)),
        str(sum(bool(np.abs(text).max() > _SAME) for text in apart)),
        str(len(every)),
        f"{np.mean(np.abs(every) <= _SAME):.3f}",
        f"{np.abs(every).mean():.1e}",
        f"{np.abs(every).max():.1e}",
        f"{every.mean():+.1e}",
        f"{max(np.abs(text).mean() for text in apart):.1e}",
    )


def _apart(ours: Texts, others: Texts) -> Texts:
    return [one - other for one, other in zip(ours, others, strict=True)]


def _loaded(path: Path, setting: RuntimeSettings, owned: ExitStack) -> LlamaModel:
    validate_gguf(path)
    model = LlamaModel(path, ON_HOST, setting.extra_buffers, lambda _fraction: True)
    owned.callback(model.close)
    return model


def _alone(model: LlamaModel, setting: RuntimeSettings, owned: ExitStack) -> Alone:
    alone = Alone(model, N_CTX, setting)
    owned.callback(alone.close)
    return alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first workload (0)")
    parser.add_argument("--count", type=int, default=50, help="how many workloads (50)")
    parser.add_argument("--threads", type=int, default=1, help="of the model (1)")
    parser.add_argument("--ubatch", type=int, default=512, help="tokens that are computed at once (512)")
    parser.add_argument("--kv-type", default="f16", help="of the cache (f16)")
    parser.add_argument("--flash", action="store_true", help="use fused attention")
    parser.add_argument("--repack", action="store_true", help="use llama.cpp's extra buffer types")
    parser.add_argument("--reference", type=Path, help="the same model in F32, computed alone with a cache of F32")
    parser.add_argument("--limit", type=float, default=float("inf"), help="how far a score may be off, in nats (any)")
    options = parser.parse_args()
    setting = RuntimeSettings(options.threads, options.flash, options.repack, options.ubatch, options.kv_type)
    seeds = range(options.first, options.first + options.count)
    scores = run(options.model, seeds, setting, options.reference)
    show(table(scores))
    sys.exit(scores.furthest > options.limit)


if __name__ == "__main__":
    main()
