"""What is asked of the process that gathers an importance matrix, and the matrix that comes of it.

The child writes into a folder that goes away, so that nothing is left of a run that is ended.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.child import Step, results_of

if TYPE_CHECKING:
    from quantizer.imatrix import ImportanceMatrix

__all__ = ["ImatrixRequest", "gathered"]


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


def gathered(request: ImatrixRequest, watched: Callable[[Iterator[Step]], Iterator[Step]]) -> ImportanceMatrix:
    """Let a child run the model and return the matrix; `watched` is given the steps and hands them on.

    Leaving early ends the child. Raises the child's UserError.
    """
    from quantizer.imatrix import read_imatrix

    with tempfile.TemporaryDirectory(prefix="localllm-imatrix-") as folder:
        output = Path(folder) / "imatrix.gguf"
        results_of("app.engine.imatrix_process", replace(request, output=str(output)), Step, watched)
        return read_imatrix(output)
