"""What processes leave in a folder while they write a file atomically, and for ever where they are killed."""

from __future__ import annotations

import os
from pathlib import Path

_NO_PROCESS = 99_999_999


def partial_files(folder: Path, name: str) -> Path:
    """Make `folder` with two partial files of `name`: that of a process that is gone, and that of this one, which is
    returned."""
    folder.mkdir()
    left, running = (folder / f".{name}.{process}.0.tmp" for process in (_NO_PROCESS, os.getpid()))
    for path in (left, running):
        path.touch()
    return running
