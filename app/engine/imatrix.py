"""What is asked of the process that gathers an importance matrix, and the matrix that comes of it.

The child writes into a folder that goes away, so that nothing is left of a run that is ended.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.child import lines_of
from app.processes import python_module

if TYPE_CHECKING:
    from quantizer.imatrix import ImportanceMatrix

__all__ = ["ImatrixRequest", "ImatrixStep", "gathered"]


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


@dataclass(frozen=True, slots=True)
class ImatrixStep:
    """The window at `index` is read."""

    index: int
    n_steps: int


def gathered(
    request: ImatrixRequest, watched: Callable[[Iterator[ImatrixStep]], Iterator[ImatrixStep]]
) -> ImportanceMatrix:
    """Let a child run the model and return the matrix; `watched` is given the steps and hands them on.

    Leaving early ends the child. Raises the child's UserError.
    """
    from quantizer.imatrix import read_imatrix

    with tempfile.TemporaryDirectory(prefix="localllm-imatrix-") as folder:
        output = Path(folder) / "imatrix.gguf"
        asked = asdict(replace(request, output=str(output)))
        with closing(lines_of(python_module("app.engine.imatrix_process"), asked)) as lines:
            for _ in watched(ImatrixStep(**line) for line in lines):
                pass
        return read_imatrix(output)
