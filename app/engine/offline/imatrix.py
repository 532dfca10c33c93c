"""The importance matrix (imatrix) of a model: how much each column of its weights was activated by a text.

Owns the request and the process: `python -m app.engine.offline.imatrix` with an ImatrixRequest on stdin. The child
writes the matrix into a temporary folder, so that a run that is ended leaves nothing behind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from app.engine.model_task import TaskProgress, run_task, serve_task
from app.engine.offline.scoring_model import load_scoring_model, read_windows, windows
from quantizer.mix.imatrix import ImatrixCollector, ImportanceMatrix, read_imatrix, save_imatrix
from quantizer.system.temporary_folder import temporary_folder


@dataclass(frozen=True, slots=True)
class ImatrixRequest:
    """The path of a validated model and the `text` that it reads, which is called `dataset`. It reads windows of
    `n_ctx` tokens, the first `n_chunks` or all for 0. With `parses_special` the names of special tokens in the text are
    such tokens."""

    model: str
    text: str
    dataset: str
    n_ctx: int
    n_chunks: int
    n_threads: int
    parses_special: bool = False
    output: str = ""


def run_imatrix(
    request: ImatrixRequest, track: Callable[[Iterator[TaskProgress]], Iterator[TaskProgress]]
) -> ImportanceMatrix:
    """Return the matrix, computed in a child process; `track`, leaving and errors are as in `run_task`."""
    with temporary_folder("imatrix") as folder:
        output = folder / "imatrix.gguf"
        run_task("app.engine.offline.imatrix", replace(request, output=str(output)), TaskProgress, TaskProgress, track)
        return read_imatrix(output)


def collect(request: ImatrixRequest) -> Iterator[TaskProgress]:
    """Write the matrix to the output of `request`, and yield a step for each window. Raises UserError. Runs in the
    child."""
    from app.engine.llama import ActivationRecorder

    collector = ImatrixCollector()
    recorder = ActivationRecorder(collector)
    with ExitStack() as owned:
        model = load_scoring_model(Path(request.model), request.n_ctx, request.n_threads, owned, recorder)
        tokens = model.backend.tokenize(request.text, add_special=True, parse_special=request.parses_special)
        todo = windows(tokens, request.n_ctx, model.begin, request.n_chunks)
        yield from read_windows(model.backend, todo, recorder.check)
    save_imatrix(collector.matrix(request.dataset, request.n_ctx), Path(request.output))


if __name__ == "__main__":
    sys.exit(serve_task(ImatrixRequest, collect))
