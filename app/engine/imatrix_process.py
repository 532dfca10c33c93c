"""The process that gathers an importance matrix: `python -m app.engine.imatrix_process`, an ImatrixRequest on stdin.

Says a line for each window of text; the matrix stands in its file when the process ends well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from app.engine.child import Line, Step, progress, serve
from app.engine.evaluation import compute, windows
from app.engine.imatrix import ImatrixRequest
from app.engine.llama import ActivationWatch
from app.engine.reading import load_reader
from quantizer.imatrix import Gathering, save_imatrix

__all__ = ["gather"]


def gather(request: ImatrixRequest) -> Iterator[Line]:
    """Yield a step for each window. Raises UserError."""
    gathering = Gathering()
    watch = ActivationWatch(gathering)
    with ExitStack() as owned:
        model = load_reader(Path(request.model), request.n_ctx, request.n_threads, owned, watch)
        tokens = model.backend.tokenize(request.text, add_special=True, parse_special=request.parses_special)
        todo = windows(tokens, request.n_ctx, model.begin, request.n_chunks)
        for index, window in enumerate(todo):
            # llama.cpp computes the end of the last layer for tokens with logits only, so each gets them.
            try:
                for _ in compute([model.backend], window.tokens, n_silent=0):
                    pass
            finally:
                watch.check()
            yield progress(Step(index, len(todo)))
    save_imatrix(gathering.matrix(request.dataset, request.n_ctx), Path(request.output))


def _work(request: Line) -> Iterator[Line]:
    return gather(ImatrixRequest(**request))


if __name__ == "__main__":
    sys.exit(serve(_work))
