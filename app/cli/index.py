"""The index of models as verbs open it, with a message where it was rebuilt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from app.library.local.index import Index


@contextmanager
def open_index(cache_dir: Path) -> Iterator[Index]:
    """Open the index, and print on stderr when it was rebuilt. Raises StorageError."""
    from app.library.local.index import Index

    with Index(cache_dir) as index:
        try:
            yield index
        finally:
            if index.was_damaged:
                click.echo("The index of models was damaged and was rebuilt.", err=True)
