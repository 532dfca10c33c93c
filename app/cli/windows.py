"""Options of the verbs that run a model over a text, window by window."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from quantizer.header import Header

__all__ = ["admitted", "ctx_option", "n_ctx_for"]

_DEFAULT_CTX = 512

ctx_option = click.option("--ctx", type=click.IntRange(min=0), default=0, help="Tokens of a window.  [default: 512]")


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
