"""What the shell offers for an argument: the names of models. Fast, for it runs at every press of Tab."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from app.terminal import printable_line

__all__ = ["complete_model"]


def complete_model(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the models of the library that begin with `begun`, or let the shell offer files where none does.

    A name that a terminal would obey is not offered.
    """
    from app.library.resolve import available
    from app.settings import load_settings

    names = [ref.id for ref in available(load_settings()) if ref.id == printable_line(ref.id)]
    offered = [CompletionItem(name) for name in names if name.lower().startswith(begun.lower())]
    return offered or [CompletionItem(begun, type="file")]
