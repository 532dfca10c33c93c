"""The evaluation of a model by a text: perplexity, KL divergence from a reference, size and speed.

Owns the request, the result and the process in between: `python -m app.engine.offline.evaluation` with an EvalRequest
on stdin. Both models are loaded at once and read the text side by side, so that no logits are stored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from app.engine.backend import Backend
from app.engine.model_task import TaskProgress, run_task, serve_task
from app.engine.offline.eval_statistics import EvalAccumulator, EvalStatistics
from app.engine.offline.scoring_model import ScoringModel, load_scoring_model, predictions, windows
from app.engine.tuning.speed_bench import SpeedBench, TuningEffort
from quantizer.system.errors import UsageError

_QUICK_SPEED = TuningEffort(n_repeats=5, n_prefill=64, depths=(0,), step_sizes=(1,), limit_s=2.0, has_answers=False)


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """The paths of a validated model and, optionally, its reference.

    They read `text` in windows of `n_ctx` tokens, the first `n_chunks` or all for 0.
    """

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
        todo = windows(_tokens(backends, request.text), request.n_ctx, models[0].begin, request.n_chunks)
        accumulator = EvalAccumulator()
        for index, window in enumerate(todo):
            for block in predictions(backends, window):
                accumulator.add(block.targets, *block.logits)
            yield EvalProgress(index, len(todo), accumulator.perplexity, accumulator.mean_kld)
        sizes = tuple(_figures(model) for model in models)
        yield EvalResult(len(todo), accumulator.statistics(), sizes)


def _tokens(backends: list[Backend], text: str) -> list[int]:
    """Return the tokens of `text`. Raises UsageError when two models tokenize it differently."""
    tokens, *others = [backend.tokenize(text, add_special=True, parse_special=False) for backend in backends]
    if any(other != tokens for other in others) or len({backend.facts.n_vocab for backend in backends}) > 1:
        raise UsageError(
            "The two models have different vocabularies.", "Name another file of the same model with --against."
        )
    return tokens


def _figures(model: ScoringModel) -> ModelFigures:
    model.backend.truncate(0, 0)
    with closing(SpeedBench(model.backend, model.setting, _QUICK_SPEED)) as bench:
        speeds = bench.measure()
    facts = model.backend.facts
    return ModelFigures(facts.model_bytes, facts.n_parameters, speeds.prefill, speeds.decode[0][1])


if __name__ == "__main__":
    sys.exit(serve_task(EvalRequest, evaluate))
