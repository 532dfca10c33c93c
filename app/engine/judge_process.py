"""The process that judges a model: `python -m app.engine.judge_process`, a request of `judging` on stdin.

Says a line for each window of text and, last, the verdict. Both models are loaded at once, and go through the text side
by side, so that no logits are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from app.engine.backend import Backend
from app.engine.child import Line, progress, result, serve
from app.engine.evaluation import Window, predictions, windows
from app.engine.judging import JudgeRequest, Scored, Size, Verdict
from app.engine.reading import Reader, load_reader
from app.engine.tune_plan import Effort
from app.engine.tuner import measure
from quantizer.errors import UsageError
from quantizer.judge import Tally

__all__ = ["judge"]

_GLANCE = Effort(n_repeats=5, n_prefill=64, depths=(0,), step_sizes=(1,))


def judge(request: JudgeRequest) -> Iterator[Line]:
    """Yield a step for each window, then the verdict. Raises UserError."""
    with ExitStack() as owned:
        models = [load_reader(Path(path), request.n_ctx, request.n_threads, owned) for path in request.models]
        backends = [model.backend for model in models]
        todo = windows(_tokens(backends, request.text), request.n_ctx, models[0].begin, request.n_chunks)
        tally = Tally()
        for index, window in enumerate(todo):
            _add(tally, backends, window)
            yield progress(Scored(index, len(todo), tally.perplexity, tally.mean_kld))
        sizes = tuple(_measured(model) for model in models)
        yield result(Verdict(len(todo), tally.judgement(), sizes))


def _add(tally: Tally, backends: list[Backend], window: Window) -> None:
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


def _measured(model: Reader) -> Size:
    model.backend.truncate(0, 0)
    speeds = measure(model.backend, model.setting, _GLANCE)
    facts = model.backend.facts
    return Size(facts.model_bytes, facts.n_parameters, speeds.prefill, speeds.decode[0][1])


def _work(request: Line) -> Iterator[Line]:
    return judge(JudgeRequest(**request))


if __name__ == "__main__":
    sys.exit(serve(_work))
