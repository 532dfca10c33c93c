"""What is asked of the process that judges models, and what it says.

The process that judges a model: `python -m app.engine.offline.evaluation`, a request of `judging` on stdin.

Says a line for each window of text and, last, the verdict. Both models are loaded at once, and go through the text side
by side, so that no logits are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from app.engine.backend import Backend
from app.engine.model_task import Line, TaskProgress, progress, result, run_task, serve
from app.engine.offline.eval_statistics import Estimate, EvalAccumulator, EvalStatistics, ReferenceComparison
from app.engine.offline.scoring_model import ScoringModel, Window, load_scoring_model, predictions, windows
from app.engine.tuning.tuner import TuningEffort, measure
from quantizer.errors import UsageError

__all__ = ["EvalProgress", "EvalRequest", "EvalResult", "ModelFigures", "judge", "run_eval"]


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """`models` are paths that the gate has let through: one, or one and its reference.

    They read `text` in windows of `n_ctx` tokens, the first `n_chunks` or all for 0.
    """

    models: tuple[str, ...]
    text: str
    n_ctx: int
    n_chunks: int
    n_threads: int


@dataclass(frozen=True, slots=True)
class EvalProgress(TaskProgress):
    """A window is scored; the figures are those so far, `kld` only beside a reference."""

    perplexity: float
    kld: float | None


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """What a model takes, in bytes of weights, and how fast it was seen to run, in tokens a second."""

    n_bytes: int
    n_parameters: int
    prefill: float
    decode: float

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.n_bytes / self.n_parameters


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The statistics of all windows, and the sizes of the models in the order of the request."""

    n_windows: int
    statistics: EvalStatistics
    sizes: tuple[ModelFigures, ...]


def run_eval(request: EvalRequest, watched: Callable[[Iterator[EvalProgress]], Iterator[EvalProgress]]) -> EvalResult:
    """Let a child judge and return its verdict; `watched` is given the steps and hands them on.

    Leaving early ends the child. Raises the child's UserError.
    """
    (verdict,) = run_task("app.engine.offline.evaluation", request, EvalProgress, watched)
    return _verdict_of(verdict)


def _verdict_of(entry: Line) -> EvalResult:
    """Return what `dataclasses.asdict` made of a EvalResult, after it went through JSON."""
    told = entry["statistics"]
    estimates = {name: Estimate(**value) for name, value in (told["comparison"] or {}).items()}
    comparison = ReferenceComparison(**estimates) if estimates else None
    statistics = EvalStatistics(told["n_tokens"], Estimate(**told["perplexity"]), comparison)
    return EvalResult(entry["n_windows"], statistics, tuple(ModelFigures(**size) for size in entry["sizes"]))


_GLANCE = TuningEffort(n_repeats=5, n_prefill=64, depths=(0,), step_sizes=(1,))


def judge(request: EvalRequest) -> Iterator[Line]:
    """Yield a step for each window, then the verdict. Raises UserError."""
    with ExitStack() as owned:
        models = [load_scoring_model(Path(path), request.n_ctx, request.n_threads, owned) for path in request.models]
        backends = [model.backend for model in models]
        todo = windows(_tokens(backends, request.text), request.n_ctx, models[0].begin, request.n_chunks)
        tally = EvalAccumulator()
        for index, window in enumerate(todo):
            _add(tally, backends, window)
            yield progress(EvalProgress(index, len(todo), tally.perplexity, tally.mean_kld))
        sizes = tuple(_measured(model) for model in models)
        yield result(EvalResult(len(todo), tally.statistics(), sizes))


def _add(tally: EvalAccumulator, backends: list[Backend], window: Window) -> None:
    for scored in predictions(backends, window):
        tally.add(scored.targets, *scored.logits)


def _tokens(backends: list[Backend], text: str) -> list[int]:
    """Return the tokens of `text`. Raises UsageError where two models do not cut it alike."""
    tokens, *others = [backend.tokenize(text, add_special=True, parse_special=False) for backend in backends]
    if any(other != tokens for other in others) or len({backend.facts.n_vocab for backend in backends}) > 1:
        raise UsageError(
            "The two models have different vocabularies.", "Name another file of the same model with --against."
        )
    return tokens


def _measured(model: ScoringModel) -> ModelFigures:
    model.backend.truncate(0, 0)
    speeds = measure(model.backend, model.setting, _GLANCE)
    facts = model.backend.facts
    return ModelFigures(facts.model_bytes, facts.n_parameters, speeds.prefill, speeds.decode[0][1])


def _work(request: Line) -> Iterator[Line]:
    return judge(EvalRequest(**request))


if __name__ == "__main__":
    sys.exit(serve(_work))
