"""Whether drafts change sampling at temperature 1: every sampled token against the model's own probabilities.

Run: `uv run python tests/bench/engine/sampling_distribution.py MODEL.gguf [--answers 300]`. Each token becomes its
quantile in the distribution it was drawn from, the drafted token first and then the likelier ones: uniform from 0 to 1,
whatever came before, if only the model decides. Chi-squared over 20 equal bins tests that (randomised probability
integral transform: Rosenblatt 1952). Exits with 1 if it is not uniform.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from app.bench.workloads import RandomText
from app.engine.backend import Chunk, DecodeStatus, Sampler
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.loop.core import Engine
from app.engine.messages import EngineConfig
from app.engine.request import Request, SamplingParams
from app.engine.speculative.cost_model import FREE_REJECTION, StepCost
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.validation import validate_gguf
from tests.bench.playing import FreeDrafts
from tests.bench.report import show

__all__ = ["QuantileRecorder", "chi_squared"]

N_BINS = 20
CRITICAL = 43.8  # chi-squared with 19 degrees of freedom exceeds it once in a thousand
MIN_DRAFTED = 1000  # fewer drafted tokens show nothing
_NO_DRAFT_PAYS = {1: 1.0, 2: 1e6}
_N_CTX, _N_TOKENS, _PROMPT_WORDS = 512, 96, 24


def chi_squared(quantiles: Sequence[float]) -> float:
    """Return chi-squared of `quantiles` against a uniform spread over N_BINS."""
    counts, _ = np.histogram(quantiles, N_BINS, (0.0, 1.0))
    expected = len(quantiles) / N_BINS
    return float(((counts - expected) ** 2).sum() / expected)


class QuantileRecorder:
    """A backend whose samplers record the quantile of each token in the distribution that it was drawn from.

    `quantiles` has those of drafted tokens and of the others: {True: ..., False: ...}.
    """

    def __init__(self, backend: LlamaBackend, seed: int) -> None:
        self._backend = backend
        self._random = random.Random(seed)
        self._drafted: dict[int, int] = {}  # row of the batch → the token that is verified there
        self.quantiles: dict[bool, list[float]] = {True: [], False: []}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        self._drafted = {}
        end = 0
        for chunk in chunks:
            end += len(chunk.tokens)
            for n_back in range(1, chunk.n_logits):
                self._drafted[end - n_back - 1] = chunk.tokens[-n_back]
        return self._backend.decode(chunks)

    def new_sampler(self, *arguments: Any, **options: Any) -> Sampler:
        return _RecordingSampler(self._backend.new_sampler(*arguments, **options), self)

    def note(self, row: int, token: int) -> None:
        """Record the quantile of `token` in the distribution of `row`."""
        logits = self._backend.logits(row).astype(np.float64)
        chances = np.exp(logits - logits.max())
        chances /= chances.sum()
        order = chances.copy()
        drafted = self._drafted.get(row)
        if drafted is not None:
            order[drafted] = 2.0
        before = (order > order[token]) | ((order == order[token]) & (np.arange(len(order)) < token))
        quantile = chances[before].sum() + self._random.random() * chances[token]
        self.quantiles[drafted is not None].append(float(quantile))


class _RecordingSampler:
    """A sampler that records its tokens."""

    def __init__(self, sampler: Sampler, recorder: QuantileRecorder) -> None:
        self._sampler = sampler
        self._recorder = recorder
        self.close = sampler.close

    def sample(self, row: int) -> int:
        token = self._sampler.sample(row)
        self._recorder.note(row, token)
        return token

    def foresee(self, logits: NDArray[np.float32], n_ahead: int) -> tuple[int, float] | None:
        return self._sampler.foresee(logits, n_ahead)

    def accept(self, token: int) -> None:
        self._sampler.accept(token)


def quantiles(backend: LlamaBackend, n_answers: int, seed: int, cost: StepCost) -> tuple[dict[bool, list[float]], int]:
    """Return the quantiles of all tokens of that many answers, and the number of accepted draft tokens."""
    recorder: Any = QuantileRecorder(backend, seed)
    engine = Engine(recorder, lambda _event: None, step_cost=cost)
    # Few drafts are right at temperature 1: a model with states would make none, since it pays for each that is not.
    engine._drafter._rejection = lambda _sequence, _n_step: FREE_REJECTION  # type: ignore[method-assign]
    prose = RandomText(seed)
    for number in range(n_answers):
        sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=prose.seed())
        prompt = prose.words(_PROMPT_WORDS)
        engine.submit(Request(request_id=str(number), prompt=prompt, sampling=sampling, max_tokens=_N_TOKENS))
    while not engine.is_idle:
        engine.step()
    engine.close()
    for sequence_id in range(backend.facts.n_seq_max):
        backend.truncate(sequence_id, 0)
    return recorder.quantiles, engine.counters.n_accepted_tokens


def table(found: dict[str, list[float]]) -> Table:
    """Return one row a kind of token."""
    made = Table("tokens that had", "how many", "chi-squared", f"at most {CRITICAL}", box=None, pad_edge=False)
    for name, spread in found.items():
        statistic = chi_squared(spread)
        made.add_row(name, str(len(spread)), f"{statistic:.1f}", "" if statistic <= CRITICAL else "WRONG")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--answers", type=int, default=300, help=f"of at most {_N_TOKENS} tokens each (300)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts, of samplers and of quantiles within a token")
    parser.add_argument("--threads", type=int, default=1, help="of the model (1)")
    options = parser.parse_args()
    validate_gguf(options.model)
    model = LlamaModel(options.model, ON_HOST, extra_buffers=False, on_progress=lambda _fraction: True)
    backend = model.context(EngineConfig(n_ctx=_N_CTX), RuntimeSettings(options.threads, False, False))
    drafted, n_accepted = quantiles(backend, options.answers, options.seed, FreeDrafts())
    plain, _ = quantiles(backend, options.answers, options.seed + 1, StepCost(dict(_NO_DRAFT_PAYS)))
    backend.close()
    model.close()
    found = {
        "a draft beside them": drafted[True],
        "none, drafts on": drafted[False],
        "none, drafts off": plain[False],
    }
    show(table(found))
    print(f"{n_accepted} of {len(drafted[True])} drafted tokens were accepted.")
    is_enough = len(drafted[True]) >= MIN_DRAFTED
    sys.exit(not is_enough or any(chi_squared(spread) > CRITICAL for spread in found.values()))


if __name__ == "__main__":
    main()
