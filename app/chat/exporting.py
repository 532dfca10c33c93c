"""Export of chats to a file.

Owns the table of formats. A file appears only when it is complete.
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
from quantizer.files import explained, write_atomically

__all__ = ["EXPORTS", "export_of", "export_to"]

Export = Callable[[Iterable[Transcript]], Iterator[str]]
EXPORTS: Mapping[str, Export] = {"markdown": markdown, "json": localllm_json, "html": page}
_ENDINGS = {".md": "markdown", ".json": "json", ".html": "html"}


def export_of(path: Path) -> Export:
    """Return the format for a file name's extension. Raises UsageError for an unknown one."""
    if name := _ENDINGS.get(path.suffix.lower()):
        return EXPORTS[name]
    raise UsageError(f"{path.name} has no known extension.", f"End it with {', '.join(_ENDINGS)}.")


def export_to(path: Path, pieces: Iterable[str]) -> None:
    """Write `pieces` to `path`. Raises StorageError if it exists already, or the disk fails."""
    if os.path.lexists(path):
        raise StorageError(f"{path} exists already.", "Name another file.")
    with explained(f"{path} could not be written", "Name another file."):
        write_atomically(path, pieces, sync=True)
