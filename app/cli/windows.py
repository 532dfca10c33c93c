"""Options and progress of the verbs that run a model over a text, window by window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

if TYPE_CHECKING:
    from quantizer.header import Header

__all__ = ["admitted", "ctx_option", "n_ctx_for", "with_progress"]

_DEFAULT_CTX = 512

ctx_option = click.option("--ctx", type=click.IntRange(min=0), default=0, help="Tokens of a window.  [default: 512]")


class Step(Protocol):
    """One window of several is done."""

    @property
    def index(self) -> int: ...

    @property
    def n_windows(self) -> int: ...


_Step = TypeVar("_Step", bound=Step)


def admitted(name: str) -> tuple[Path, Header]:
    """Return the file that the model `name` means and its header, which has passed the gate. Raises UserError."""
    from app.library.resolve import resolve
    from app.settings import load_settings
    from quantizer.gate import admit

    path = resolve(name, load_settings()).path
    return path, admit(path)


def n_ctx_for(header: Header, asked: int) -> int:
    """Return the tokens of a window: those asked for, else the default where the model was trained on as many."""
    trained = header.integer(f"{header.architecture}.context_length") or _DEFAULT_CTX
    return asked or min(_DEFAULT_CTX, trained)


def with_progress(title: str, steps: Iterator[_Step]) -> Iterator[_Step]:
    """Hand on `steps` while a bar on stderr keeps up, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        for step in steps:
            bar.update(task, total=step.n_windows, completed=step.index + 1)
            yield step
