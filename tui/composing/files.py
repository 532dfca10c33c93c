"""The files below a folder that a person may mean, and what one of them says.

Owns what is passed over and how much is read. Knows nothing of prompts.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from app.chat.message import Attachment
from quantizer.errors import StorageError, UsageError

__all__ = ["MAX_ATTACHED_BYTES", "files_below", "read_text_file"]

MAX_FILES = 20_000
MAX_ATTACHED_BYTES = 4 << 20  # a million tokens: no context here holds as many
_NOISE = frozenset({"node_modules", "__pycache__", "venv", "target", "build", "dist", "site-packages"})


def files_below(folder: Path) -> list[str]:
    """Return the paths of files below `folder`, relative to it with slashes, the nearest first; 20,000 at most.

    Hidden ones, and folders that hold what programs made, are passed over; links are not followed. What cannot be read
    is not there.
    """
    return list(islice(_walk(folder), MAX_FILES))


def _walk(folder: Path) -> Iterator[str]:
    waiting = deque([""])
    while waiting:
        place = waiting.popleft()
        try:
            with os.scandir(folder / place) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _NOISE:
                    waiting.append(f"{place}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                yield f"{place}{entry.name}"


def read_text_file(path: Path, name: str) -> Attachment:
    """Return what the file at `path` says, to go with a question as `name`.

    Raises StorageError for one that cannot be read, UsageError for one that is too large or no text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_ATTACHED_BYTES + 1)
    except OSError as error:
        raise StorageError(
            f"{name} cannot be read: {error.strerror}.", "Check its name and its permissions."
        ) from error
    if len(data) > MAX_ATTACHED_BYTES:
        raise UsageError(f"{name} is larger than {MAX_ATTACHED_BYTES >> 20} MiB.", "Attach a part of it.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{name} is no text in UTF-8.", "A picture or a program says nothing to this model.")
    return Attachment(name, text)
