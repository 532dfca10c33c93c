"""What a job has said, in a file of bounded size: the last of it stays.

Owns that file. Knows nothing of jobs.
"""

from __future__ import annotations

from pathlib import Path

from app.terminal import printable

__all__ = ["JobLog"]

MAX_BYTES = 256 << 10
_DROPPED = "[what came before was dropped]\n"


class JobLog:
    """The log at `path`, which need not be there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def folder(self) -> Path:
        return self._path.parent

    def append(self, text: str) -> None:
        """Add `text`, without what a terminal would obey; where it is too much the older half goes. Raises OSError."""
        with self._path.open("ab") as file:
            file.write(printable(text).encode("utf-8", "replace"))
            is_full = file.tell() > MAX_BYTES
        if is_full:
            kept = self._path.read_bytes()[-MAX_BYTES // 2 :].partition(b"\n")[2]
            partial = self._path.with_name(f"{self._path.name}.part")
            partial.write_bytes(_DROPPED.encode() + kept)
            partial.replace(self._path)

    def read(self) -> str:
        """Return what there is. Raises OSError."""
        try:
            return self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
