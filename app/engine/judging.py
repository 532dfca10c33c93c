"""What is asked of the process that judges models, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass

from app.engine.child import Line, lines_of
from app.processes import python_module
from quantizer.judge import Comparison, Estimate, Judgement

__all__ = ["JudgeRequest", "Size", "Step", "Verdict", "judged"]


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
class Step:
    """The window at `index` is scored; the figures are those so far, `kld` only beside a reference."""

    index: int
    n_steps: int
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


def judged(request: JudgeRequest, watched: Callable[[Iterator[Step]], Iterator[Step]]) -> Verdict:
    """Let a child judge and return its verdict; `watched` is given the steps and hands them on.

    Leaving early ends the child. Raises the child's UserError.
    """
    verdicts: list[Verdict] = []
    for _ in watched(_steps(request, verdicts)):
        pass
    return verdicts[0]


def _steps(request: JudgeRequest, verdicts: list[Verdict]) -> Iterator[Step]:
    """Yield each window that is scored; the verdict, which comes last, is put into `verdicts`."""
    with closing(lines_of(python_module("app.engine.judge_process"), asdict(request))) as lines:
        for line in lines:
            if "verdict" in line:
                verdicts.append(_verdict_of(line["verdict"]))
            else:
                yield Step(**line["step"])


def _verdict_of(entry: Line) -> Verdict:
    """Return what `dataclasses.asdict` made of a Verdict, after it went through JSON."""
    told = entry["judgement"]
    estimates = {name: Estimate(**value) for name, value in (told["comparison"] or {}).items()}
    comparison = Comparison(**estimates) if estimates else None
    judgement = Judgement(told["n_tokens"], Estimate(**told["perplexity"]), comparison)
    return Verdict(entry["n_windows"], judgement, tuple(Size(**size) for size in entry["sizes"]))
