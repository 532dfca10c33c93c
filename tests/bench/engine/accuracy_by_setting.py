"""Whose numbers are nearer the truth? Log probabilities of each setting that the tuner measures, against those of F32.

Run: `python -m tests.bench.engine.accuracy_by_setting MODEL.gguf F32.gguf [--positions 1024] [--worst 5]`.
The truth is the same model in F32 (`localllm quantize MODEL.gguf F32 -o F32.gguf`), with a cache of F32 and one thread.
At each position the ten tokens that are likeliest by the truth are compared. The yardstick is the setting that
llama-server chooses by itself: fused attention, repacked weights, a cache of F16, micro-batches of 512. "Costs more"
says which settings are further from the truth than that, by `costs_more`. `--worst` lists the positions with the
largest differences. Exits with 1 where a setting costs more that is chosen unasked.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from app.cli.resources import shipped
from app.engine.backend import Chunk
from app.engine.llama import LlamaModel
from app.engine.messages import EngineConfig
from app.engine.offline.evaluation import log_softmax
from app.engine.tuning.tune_results import DEFAULT_KV_TYPE, RuntimeSettings, plain_from_of
from app.engine.tuning.tuner import first_settings, refinements
from offload.devices.host import usable_processors
from offload.placement.load_parameters import ON_HOST
from offload.speed.type_costs import COPY_KINDS, UNQUANTIZED
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import TENSOR_TYPES
from quantizer.gguf.validation import validate_gguf
from tests.bench.report import show
from tests.real.texts import TEXTS

__all__ = ["Distances", "Truth", "costs_more", "distances"]

N_TOP = 10
N_WINDOW = 256  # tokens of a text that are read at once
TRUTH = RuntimeSettings(1, flash_attention=False, extra_buffers=False, kv_type="f32")
_COLUMNS = ("tokens a step", "mean |Δ|", "top 1 equal", "largest |Δ|", "mean beside llama-server's", "costs more")
# Kernels round in other ways, which moves the mean by up to 4 % to either side: see `costs_more`.
_TOLERATED = 0.05
_Z = 1.96  # 95 % of a normal distribution lie within so many deviations


@dataclass(frozen=True, slots=True)
class Distances:
    """How far one setting is from the truth at each position: the mean and the largest difference in nats of what is
    likeliest by the truth, and whether its likeliest token is the truth's."""

    means: NDArray[np.float64]
    largest: NDArray[np.float64]
    agrees: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Truth:
    """The likeliest tokens at each position, the first one first, and their log probabilities."""

    tokens: NDArray[np.intp]
    logprobs: NDArray[np.float64]

    @classmethod
    def of(cls, logits: NDArray[np.float32]) -> Truth:
        tokens = np.argpartition(-logits, N_TOP)[:, :N_TOP]
        tokens = np.take_along_axis(tokens, np.argsort(-np.take_along_axis(logits, tokens, -1)), -1)
        return cls(tokens, np.take_along_axis(log_softmax(logits), tokens, -1))


def distances(logits: NDArray[np.float32], truth: Truth) -> Distances:
    """Compare the logits of the same positions, shape (positions, vocabulary)."""
    apart = np.abs(np.take_along_axis(log_softmax(logits), truth.tokens, -1) - truth.logprobs)
    return Distances(apart.mean(-1), apart.max(-1), logits.argmax(-1) == truth.tokens[:, 0])


def costs_more(setting: Distances, yardstick: Distances) -> bool:
    """Return whether `setting` is further from the truth than `yardstick`: its mean difference is larger by more than
    the tolerated share, and so is the lower end of a 95 % interval. Both read the same positions, so that the interval
    is that of their pairs: single positions differ by ten times more than two settings do."""
    excess = setting.means - (1 + _TOLERATED) * yardstick.means
    error = float(excess.std(ddof=1)) / math.sqrt(len(excess))
    return float(excess.mean()) - _Z * error > 0


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A setting, in steps of `n_step` tokens. Users choose those that are not chosen unasked."""

    setting: RuntimeSettings
    n_step: int
    is_chosen: bool = True

    @property
    def name(self) -> str:
        setting = self.setting
        return ", ".join(
            (
                "fused" if setting.flash_attention else "plain",
                setting.weights,
                f"micro-batch {setting.n_ubatch}",
                f"KV {setting.kv_type}",
                f"{setting.n_threads} thread{'s' if setting.n_threads > 1 else ''}",
                *(f"{name} as {kind}" for name, kind in setting.copies),
            )
        )


def _candidates(path: Path) -> Iterator[_Candidate]:
    """Yield llama-server's default first, then what the tuner measures: its first settings, and of the default of a
    processor all neighbours; and with all weights copied into each kind. Each reads the text in steps of a prompt; one
    is read as an answer is, token by token."""
    plain_from = plain_from_of(read_header(path))
    n_processors = usable_processors()
    default = RuntimeSettings(n_processors, flash_attention=False, extra_buffers=True, plain_from=plain_from)
    yardstick = replace(default, flash_attention=True, plain_from=0)
    first = first_settings(default, extra_buffers_are_safe=True, plain_from=plain_from)
    types = sorted({TENSOR_TYPES[tensor.type_id].name for tensor in read_header(path).tensors} - set(UNQUANTIZED))
    copied = [replace(default, copies=tuple((name, kind) for name in types)) for kind in COPY_KINDS]
    for setting in dict.fromkeys([yardstick, *first, *copied, *refinements(default, n_processors)]):
        yield _Candidate(setting, N_WINDOW, is_chosen=setting.kv_type == DEFAULT_KV_TYPE)
    for setting in (yardstick, default):
        for n_step in (32, 1):
            yield _Candidate(setting, n_step)


def _texts(model: LlamaModel, n_positions: int) -> list[list[int]]:
    """Return tokens of texts with `n_positions` that predict a token: short ones of every kind, then an essay."""
    with closing(model.context(EngineConfig(n_ctx=N_WINDOW, n_sequences=1), TRUTH)) as backend:
        found = [backend.tokenize(text, True, False) for text in TEXTS.values()]
        essay = backend.tokenize(shipped("evaluation.txt").read_text(encoding="utf-8"), True, False)
    n_missing = n_positions - sum(len(tokens) - 1 for tokens in found)
    for begin in range(0, len(essay), N_WINDOW):
        if n_missing < 1:
            break
        found.append(essay[begin : begin + min(N_WINDOW, n_missing + 1)])
        n_missing -= len(found[-1]) - 1
    return [tokens for tokens in found if len(tokens) > 1]


def _logits(model: LlamaModel, candidate: _Candidate, texts: Sequence[Sequence[int]]) -> Iterator[NDArray[np.float32]]:
    """Yield the logits of each text, all positions but the last, which predicts nothing."""
    config = EngineConfig(n_ctx=2 * N_WINDOW, n_sequences=1, n_batch=max(candidate.n_step, candidate.setting.n_ubatch))
    named = dict(candidate.setting.copies)
    copies = model.new_copies(named, lambda _n_bytes: True) if named else None
    with closing(model.context(config, candidate.setting, copies=copies)) as backend:
        if copies is not None:
            backend.decode([Chunk(0, 0, [1] * N_WINDOW, 1)])  # pays for them
        n_step = min(candidate.n_step, backend.facts.n_batch)  # with a sliding window a micro-batch at most
        for tokens in texts:
            backend.truncate(0, 0)
            rows = []
            for begin in range(0, len(tokens) - 1, n_step):
                chunk = tokens[begin : min(begin + n_step, len(tokens) - 1)]
                backend.decode([Chunk(0, begin, chunk, len(chunk))])
                rows += [backend.logits(row).copy() for row in range(len(chunk))]
            yield np.stack(rows)


def _measured(path: Path, truth_path: Path, n_positions: int) -> Iterator[tuple[_Candidate, Distances]]:
    """Yield how far each candidate is from the truth, llama-server's default first."""
    with ExitStack() as owned:
        true_model = _loaded(truth_path, is_repacked=False, owned=owned)
        texts = _texts(true_model, n_positions)
        truth = [Truth.of(logits) for logits in _logits(true_model, _Candidate(TRUTH, N_WINDOW), texts)]
        models = {repacks: _loaded(path, is_repacked=repacks, owned=owned) for repacks in (True, False)}
        models[True].map_plain_weights(read_header(path))
        for candidate in _candidates(path):
            pairs = zip(_logits(models[candidate.setting.extra_buffers], candidate, texts), truth, strict=True)
            parts = [distances(logits, true) for logits, true in pairs]
            names = ("means", "largest", "agrees")
            yield candidate, Distances(*(np.concatenate([getattr(each, name) for each in parts]) for name in names))


def _loaded(path: Path, *, is_repacked: bool, owned: ExitStack) -> LlamaModel:
    validate_gguf(path)
    model = LlamaModel(path, ON_HOST, is_repacked, lambda _fraction: True)
    owned.callback(model.close)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("truth", type=Path, help="the same model in F32")
    parser.add_argument("--positions", type=int, default=1024, help="how many (1024)")
    parser.add_argument("--worst", type=int, default=0, help="list so many positions of each setting (0)")
    options = parser.parse_args()
    made = Table(box=None, pad_edge=False)
    made.add_column("setting", no_wrap=True)
    for name in _COLUMNS:
        made.add_column(name, justify="right")
    yardstick: Distances | None = None
    failed = False
    for candidate, found in _measured(options.model, options.truth, options.positions):
        yardstick = yardstick or found
        is_worse = costs_more(found, yardstick)
        failed |= is_worse and candidate.is_chosen
        made.add_row(
            candidate.name,
            str(candidate.n_step),
            f"{found.means.mean():.4f}",
            f"{found.agrees.sum()} of {len(found.agrees)}",
            f"{found.largest.max():.2f}",
            f"{found.means.mean() / yardstick.means.mean():.3f}",
            "yes" if is_worse else "no",
        )
        if options.worst:
            worst = np.argsort(-found.largest)[: options.worst]
            print(candidate.name, [(int(at), round(float(found.largest[at]), 2)) for at in worst], flush=True)
    show(made)
    sys.exit(failed)


if __name__ == "__main__":
    main()
