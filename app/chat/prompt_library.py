"""The prompt library: texts in `<data>/prompts/`, one file each, which the user writes; and reading such a file.

Owns which files count and how they are read: they are untrusted. Filling in {{placeholders}} is the user's.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from quantizer.system.errors import UsageError
from quantizer.system.files import explained

MAX_PROMPT_BYTES = 64 * 1024
_FOLDER = "prompts"
_SUFFIXES = (".md", ".txt")
_MAX_PROMPTS = 1000
_CHECK = "Check its name and its permissions."


class PromptLibrary:
    """The prompts of one data folder. Every method raises StorageError if the folder or file cannot be used."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / _FOLDER

    def names(self) -> tuple[str, ...]:
        """Return the names of the prompts in order: of the files ending in .md or .txt, without that ending."""
        return tuple(sorted(self._paths()))

    def get(self, name: str) -> str:
        """Return the text of a prompt. Raises UsageError for an unknown name, and for a file that is no text."""
        paths = self._paths()
        if name not in paths:
            known = ", ".join(sorted(paths))
            remedy = f"Prompts: {known}." if known else f"Write a text file, such as {self.folder / 'summary.md'}."
            raise UsageError(f"There is no prompt {name}.", remedy)
        return read_text(paths[name], MAX_PROMPT_BYTES).strip()

    def _paths(self) -> dict[str, Path]:
        """Return the files by name; a link is none, since a prompt is read without a further question."""
        with explained(f"{self.folder} cannot be read", "Check its permissions."):
            try:
                with os.scandir(self.folder) as entries:
                    files = [Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)]
            except FileNotFoundError:
                return {}
        prompts = sorted(file for file in files if file.suffix in _SUFFIXES and not file.name.startswith("."))
        return {file.stem: file for file in reversed(prompts[:_MAX_PROMPTS])}


def read_text(path: Path, most_bytes: int) -> str:
    """Return the text of a regular file. Raises StorageError if it cannot be read, UsageError if it is anything else,
    too large or not UTF-8."""
    # Without O_NONBLOCK opening a FIFO would wait for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with explained(f"{path.name} cannot be read", _CHECK), os.fdopen(os.open(path, flags), "rb") as file:
        is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        data = file.read(most_bytes + 1) if is_regular else b""
    if not is_regular:
        raise UsageError(f"{path.name} is not a regular file.", "Give a text file.")
    if len(data) > most_bytes:
        raise UsageError(f"{path.name} is larger than {most_bytes >> 10} KiB.", "Shorten it.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name} is not UTF-8: byte {error.start:,} is invalid.", "Save it as UTF-8.") from error
