"""The journal of a file that is being written: how far it is, so that a killed run can go on where it stopped.

A text file beside the output: one line says what is written (a fingerprint), each further one is the checksum of a
block that was written. Owns that file and its lock; knows nothing of what the blocks are. What the journal says is
believed only of blocks whose bytes bear it out, so nothing depends on the order in which a disk keeps things.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from quantizer.errors import StorageError
from quantizer.locks import open_locked

__all__ = ["Journal", "journal_path"]

_LINE = re.compile(rb"[0-9a-f]{8}")


class Journal:
    """The open journal of `output`, locked against other runs until it is closed.

    Raises StorageError when another run holds it, OSError when it cannot be opened.
    """

    def __init__(self, output: Path) -> None:
        self.path = journal_path(output)
        self._file = _opened(self.path, output)

    def checksums(self, fingerprint: str) -> list[int]:
        """Those of the blocks that a run with this `fingerprint` wrote, none when another one wrote."""
        self._file.seek(0)
        first, *lines = self._file.read().split(b"\n")[:-1] or [b""]  # a line counts when its end is there
        if first != fingerprint.encode():
            return []
        return [int(line, 16) for line in takewhile(_LINE.fullmatch, lines)]

    def restart(self, fingerprint: str, checksums: Sequence[int]) -> None:
        """Begin anew with the blocks that stand. Raises OSError."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write("\n".join([fingerprint, *(f"{checksum:08x}" for checksum in checksums), ""]).encode())

    def add(self, checksum: int) -> None:
        """Say that one more block was written. Raises OSError."""
        self._file.write(f"{checksum:08x}\n".encode())

    def close(self) -> None:
        """Let go of the lock and keep the file."""
        self._file.close()

    def remove(self) -> None:
        """Let go of the lock and remove the file."""
        if os.name == "nt":
            self._file.close()  # Windows removes no open file
        self.path.unlink(missing_ok=True)
        self._file.close()


def journal_path(output: Path) -> Path:
    """Where the journal of `output` lies."""
    return output.with_name(f".{output.name}.journal")


def _opened(path: Path, output: Path) -> BinaryIO:
    file = open_locked(path)
    if file is None:
        raise StorageError(f"Another run is writing {output.name}.", "Wait for it, or name another output with -o.")
    return file
