"""The evaluation of a model by a text: perplexity, KL divergence from a reference, size and speed.

The process in between is `python -m app.engine.offline.evaluation` with an EvalRequest on stdin. Both models are loaded
at once and read the text side by side, so that no logits are stored.

Source of the statistics: perplexity, its standard error and that of a ratio, mean divergence and percentiles as in
llama.cpp tools/perplexity/perplexity.cpp, as vendored in llama-cpp-python 0.3.36. Intervals are of 95 %: normal around
means, Wilson's for shares, order statistics (the binomial's normal limit) for quantiles.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.engine.model_task import TaskProgress, run_task, serve_task
from app.engine.offline.scoring_model import load_scoring_model, predictions, windows
from app.engine.tuning.speed_bench import SpeedBench, TuningEffort
from quantizer.system.errors import EngineError, UsageError

Floats = NDArray[np.float64]
Logits = NDArray[np.float32]

_Z = 1.959963984540054  # 95 % of a normal distribution lie within so many deviations
_QUICK_SPEED = TuningEffort(n_repeats=5, n_prefill=64, depths=(0,), step_sizes=(1,), limit_s=2.0, has_answers=False)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, its standard error, and the 95 % interval it lies in."""

    value: float
    error: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
    """A model compared with its reference: `ratio` of perplexities, KL divergence in nats per token, and how often both
    have the same likeliest token."""

    reference_perplexity: Estimate
    ratio: Estimate
    mean_kld: Estimate
    median_kld: Estimate
    p99_kld: Estimate
    same_top: Estimate


@dataclass(frozen=True, slots=True)
class EvalStatistics:
    """The statistics of `n_tokens` scored tokens; `comparison` needs a reference."""

    n_tokens: int
    perplexity: Estimate
    comparison: ReferenceComparison | None


class EvalAccumulator:
    """A collector of scored tokens. It stores a few numbers for each, never its logits."""

    def __init__(self) -> None:
        self._losses: list[Floats] = []
        self._reference_losses: list[Floats] = []
        self._divergences: list[Floats] = []
        self._is_same_top: list[NDArray[np.bool_]] = []
        self._n_tokens = 0
        self._loss_sum = self._divergence_sum = 0.0

    @property
    def perplexity(self) -> float:
        return _exp(self._loss_sum / self._n_tokens)

    @property
    def mean_kld(self) -> float | None:
        """The mean divergence from the reference so far, None without one."""
        return self._divergence_sum / self._n_tokens if self._divergences else None

    def add(self, targets: NDArray[np.intp], logits: Logits, reference: Logits | None = None) -> None:
        """Score `targets`, shape (n,), that were predicted by `logits`, shape (n, n_vocab), and by a reference. Raises
        EngineError for logits that are not numbers."""
        log_p = log_softmax(logits)
        self._losses.append(-_taken(log_p, targets))
        self._n_tokens += len(targets)
        self._loss_sum += float(self._losses[-1].sum())
        if reference is None:
            return
        log_q = log_softmax(reference)
        self._reference_losses.append(-_taken(log_q, targets))
        self._divergences.append(divergence(log_q, log_p))
        self._divergence_sum += float(self._divergences[-1].sum())
        self._is_same_top.append(log_q.argmax(axis=1) == log_p.argmax(axis=1))

    def statistics(self) -> EvalStatistics:
        """Return the statistics of the tokens added so far, at least one."""
        losses = np.concatenate(self._losses)
        comparison = None
        if self._divergences:
            reference_losses, divergences = np.concatenate(self._reference_losses), np.concatenate(self._divergences)
            comparison = ReferenceComparison(
                _exponential(mean_of(reference_losses)),
                _exponential(mean_of(losses - reference_losses)),
                mean_of(divergences),
                quantile_of(divergences, 0.5),
                quantile_of(divergences, 0.99),
                share_of(np.concatenate(self._is_same_top)),
            )
        return EvalStatistics(len(losses), _exponential(mean_of(losses)), comparison)


def log_softmax(logits: Logits) -> Floats:
    """Return log-probabilities of rows of logits, shape (n, n_vocab), in float64. Raises EngineError for NaN."""
    shifted = logits.astype(np.float64)
    if np.isnan(shifted).any():
        raise EngineError("The model's output is not a number (NaN).", "Download the model again.")
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def mean_of(values: Floats) -> Estimate:
    """Return the mean of `values`; a single one has an infinite error."""
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return Estimate(mean, error, mean - _Z * error, mean + _Z * error)


def quantile_of(values: Floats, share: float) -> Estimate:
    """Return the value that `share` of `values` lie below, interpolated between neighbours. Its error is that of a
    normal distribution with the same interval."""
    ordered = np.sort(values)
    last = len(ordered) - 1
    spread = _Z * math.sqrt(share * (1 - share) / len(ordered))
    low, high = (float(ordered[round(min(1.0, max(0.0, at)) * last)]) for at in (share - spread, share + spread))
    return Estimate(float(np.quantile(ordered, share)), (high - low) / (2 * _Z), low, high)


def share_of(hits: NDArray[np.bool_]) -> Estimate:
    """Return the share of true `hits`, with Wilson's interval, which stays within 0 and 1."""
    n, share = len(hits), float(hits.mean())
    error = math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else math.inf
    centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return Estimate(share, error, max(0.0, centre - half), min(1.0, centre + half))


def _exponential(mean: Estimate) -> Estimate:
    """Return e to the power of a mean: the perplexity for losses, a ratio of two for their differences."""
    value = _exp(mean.value)
    return Estimate(value, value * mean.error, _exp(mean.low), _exp(mean.high))


def _exp(power: float) -> float:
    """Return e to a power, infinity on overflow: broken models lose that much."""
    try:
        return math.exp(power)
    except OverflowError:
        return math.inf


def _taken(log_p: Floats, targets: NDArray[np.intp]) -> Floats:
    taken: Floats = np.take_along_axis(log_p, targets[:, None], axis=1)[:, 0]
    return taken


def divergence(log_q: Floats, log_p: Floats) -> Floats:
    """Return KL(reference || model) of each row: Σ q (log q - log p); tokens of probability 0 in q add nothing."""
    with np.errstate(invalid="ignore"):
        terms = np.exp(log_q) * (log_q - log_p)
    terms[np.isneginf(log_q)] = 0.0
    summed: Floats = terms.sum(axis=1)
    return summed


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """The paths of a validated model and, optionally, its reference. They read `text` in windows of `n_ctx` tokens, the
    first `n_chunks` or all for 0."""

    models: tuple[str, ...]
    text: str
    n_ctx: int
    n_chunks: int
    n_threads: int


@dataclass(frozen=True, slots=True)
class EvalProgress(TaskProgress):
    """The end of a window, with the figures so far; `kld` needs a reference."""

    perplexity: float
    kld: float | None


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """The bytes of the weights of a model, and its measured speeds in tokens a second."""

    n_bytes: int
    n_parameters: int
    prefill: float
    decode: float

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.n_bytes / self.n_parameters


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The statistics of all windows, and the figures of the models in the order of the request."""

    n_windows: int
    statistics: EvalStatistics
    sizes: tuple[ModelFigures, ...]


def run_eval(request: EvalRequest, track: Callable[[Iterator[EvalProgress]], Iterator[EvalProgress]]) -> EvalResult:
    """Evaluate in a child process; `track`, leaving and errors are as in `run_task`."""
    (result,) = run_task("app.engine.offline.evaluation", request, EvalProgress, EvalResult, track)
    return result


def evaluate(request: EvalRequest) -> Iterator[EvalProgress | EvalResult]:
    """Yield a step for each window, then the result. Raises UserError. Runs in the child."""
    with ExitStack() as owned:
        models = [load_scoring_model(Path(path), request.n_ctx, request.n_threads, owned) for path in request.models]
        backends = [model.backend for model in models]
        tokens, *others = [each.tokenize(request.text, add_special=True, parse_special=False) for each in backends]
        if any(other != tokens for other in others) or len({each.facts.n_vocab for each in backends}) > 1:
            cause = "The two models have different vocabularies."
            raise UsageError(cause, "Name another file of the same model with --against.")
        todo = windows(tokens, request.n_ctx, models[0].begin, request.n_chunks)
        accumulator = EvalAccumulator()
        for index, window in enumerate(todo):
            for block in predictions(backends, window):
                accumulator.add(block.targets, *block.logits)
            yield EvalProgress(index, len(todo), accumulator.perplexity, accumulator.mean_kld)
        sizes = []
        for model in models:
            model.backend.truncate(0, 0)
            with closing(SpeedBench(model.backend, model.setting, _QUICK_SPEED)) as bench:
                speeds = bench.measure()
            facts = model.backend.facts
            sizes.append(ModelFigures(facts.model_bytes, facts.n_parameters, speeds.prefill, speeds.decode[0][1]))
        yield EvalResult(len(todo), accumulator.statistics(), tuple(sizes))


if __name__ == "__main__":
    sys.exit(serve_task(EvalRequest, evaluate))
