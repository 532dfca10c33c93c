"""What is asked of the process that gathers an importance matrix, and the matrix that comes of it.

The child writes into a folder that goes away, so that nothing is left of a run that is ended.

The process that gathers an importance matrix: `python -m app.engine.offline.imatrix`, an ImatrixRequest on stdin.

Says a line for each window of text; the matrix stands in its file when the process ends well.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.llama import ActivationRecorder
from app.engine.model_task import Line, TaskProgress, progress, run_task, serve
from app.engine.offline.scoring_model import compute, load_scoring_model, windows
from quantizer.mix.imatrix import ImatrixCollector, save_imatrix

__all__ = ["ImatrixRequest", "gather", "run_imatrix"]

if TYPE_CHECKING:
    from quantizer.mix.imatrix import ImportanceMatrix


@dataclass(frozen=True, slots=True)
class ImatrixRequest:
    """`model` is a path that the gate has let through; it reads `text`, which is called `dataset`.

    In windows of `n_ctx` tokens, the first `n_chunks` or all for 0. Special tokens written in the text count as such
    with `parses_special`.
    """

    model: str
    text: str
    dataset: str
    n_ctx: int
    n_chunks: int
    n_threads: int
    parses_special: bool = False
    output: str = ""


def run_imatrix(
    request: ImatrixRequest, watched: Callable[[Iterator[TaskProgress]], Iterator[TaskProgress]]
) -> ImportanceMatrix:
    """Let a child run the model and return the matrix; `watched` is given the steps and hands them on.

    Leaving early ends the child. Raises the child's UserError.
    """
    from quantizer.mix.imatrix import read_imatrix

    with tempfile.TemporaryDirectory(prefix="localllm-imatrix-") as folder:
        output = Path(folder) / "imatrix.gguf"
        run_task("app.engine.offline.imatrix", replace(request, output=str(output)), TaskProgress, watched)
        return read_imatrix(output)


def gather(request: ImatrixRequest) -> Iterator[Line]:
    """Yield a step for each window. Raises UserError."""
    gathering = ImatrixCollector()
    watch = ActivationRecorder(gathering)
    with ExitStack() as owned:
        model = load_scoring_model(Path(request.model), request.n_ctx, request.n_threads, owned, watch)
        tokens = model.backend.tokenize(request.text, add_special=True, parse_special=request.parses_special)
        todo = windows(tokens, request.n_ctx, model.begin, request.n_chunks)
        for index, window in enumerate(todo):
            # llama.cpp computes the end of the last layer for tokens with logits only, so each gets them.
            try:
                for _ in compute([model.backend], window.tokens, n_silent=0):
                    pass
            finally:
                watch.check()
            yield progress(TaskProgress(index, len(todo)))
    save_imatrix(gathering.matrix(request.dataset, request.n_ctx), Path(request.output))


def _work(request: Line) -> Iterator[Line]:
    return gather(ImatrixRequest(**request))


if __name__ == "__main__":
    sys.exit(serve(_work))
