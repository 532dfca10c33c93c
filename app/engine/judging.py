"""What is asked of the process that judges models, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from app.engine.child import Line, Step, results_of
from quantizer.judge import Comparison, Estimate, Judgement

__all__ = ["JudgeRequest", "Scored", "Size", "Verdict", "judged"]


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """`models` are paths that the gate has let through: one, or one and its reference.

    They read `text` in windows of `n_ctx` tokens, the first `n_chunks` or all for 0.
    """

    models: tuple[str, ...]
    text: str
    n_ctx: int
    n_chunks: int
    n_threads: int


@dataclass(frozen=True, slots=True)
class Scored(Step):
    """A window is scored; the figures are those so far, `kld` only beside a reference."""

    perplexity: float
    kld: float | None


@dataclass(frozen=True, slots=True)
class Size:
    """What a model takes, in bytes of weights, and how fast it was seen to run, in tokens a second."""

    n_bytes: int
    n_parameters: int
    prefill: float
    decode: float

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.n_bytes / self.n_parameters


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of all windows, and the sizes of the models in the order of the request."""

    n_windows: int
    judgement: Judgement
    sizes: tuple[Size, ...]


def judged(request: JudgeRequest, watched: Callable[[Iterator[Scored]], Iterator[Scored]]) -> Verdict:
    """Let a child judge and return its verdict; `watched` is given the steps and hands them on.

    Leaving early ends the child. Raises the child's UserError.
    """
    (verdict,) = results_of("app.engine.judge_process", request, Scored, watched)
    return _verdict_of(verdict)


def _verdict_of(entry: Line) -> Verdict:
    """Return what `dataclasses.asdict` made of a Verdict, after it went through JSON."""
    told = entry["judgement"]
    estimates = {name: Estimate(**value) for name, value in (told["comparison"] or {}).items()}
    comparison = Comparison(**estimates) if estimates else None
    judgement = Judgement(told["n_tokens"], Estimate(**told["perplexity"]), comparison)
    return Verdict(entry["n_windows"], judgement, tuple(Size(**size) for size in entry["sizes"]))
