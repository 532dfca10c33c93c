"""The index of models as verbs open it: who has to wait for a new one is told why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from app.library.local.index import Index

__all__ = ["open_index"]


@contextmanager
def open_index(cache_dir: Path) -> Iterator[Index]:
    """Open the index, and say on stderr when it had to be made anew. Raises StorageError."""
    from app.library.local.index import Index

    with Index(cache_dir) as index:
        try:
            yield index
        finally:
            if index.was_damaged:
                click.echo("The index of models was damaged and was made anew.", err=True)
