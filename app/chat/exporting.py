"""Chats -> a file in one of the formats for export.

Owns the table of formats, and that a file stands under its name only when it is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from app.chat.conversation import Transcript
from app.chat.formats.html_page import page
from app.chat.formats.localllm import localllm_json
from app.chat.formats.markdown import markdown
from quantizer.errors import StorageError, UsageError
from quantizer.files import write_atomically

__all__ = ["EXPORTS", "export_of", "export_to"]

Export = Callable[[Iterable[Transcript]], Iterator[str]]
EXPORTS: Mapping[str, Export] = {"markdown": markdown, "json": localllm_json, "html": page}
_ENDINGS = {".md": "markdown", ".json": "json", ".html": "html"}


def export_of(path: Path) -> Export:
    """Return the format that the ending of a file name asks for. Raises UsageError for any other."""
    if name := _ENDINGS.get(path.suffix.lower()):
        return EXPORTS[name]
    raise UsageError(f"{path.name} does not end as an export does.", f"End it with {', '.join(_ENDINGS)}.")


def export_to(path: Path, pieces: Iterable[str]) -> None:
    """Write `pieces` to `path`. Raises StorageError when something is there already, or the disk refuses."""
    if os.path.lexists(path):
        raise StorageError(f"{path} is there already.", "Name another file.")
    try:
        write_atomically(path, pieces, sync=True)
    except OSError as error:
        raise StorageError(f"{path} could not be written: {error.strerror}.", "Name another file.") from error
