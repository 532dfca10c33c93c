"""Which files a tool may touch: those in the folders that the person named, wherever a path or its links lead.

Owns the rules about a path that a model writes, and finding the file that it means. What it returns is resolved: it has
no link, and `app.tools.file_access` opens it without following one that was put there since.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from app.common.terminal import quoted_name
from app.tools.file_access import is_as_named
from quantizer.system.errors import UserError

_MAX_CHARACTERS, _MAX_PARTS, _MAX_NAME = 4096, 100, 255  # of a path; the last in bytes, as systems count
_DRIVE = re.compile(r"[A-Za-z]:")
_HOME = re.compile(r"~[\w.-]*[/\\]")
_SEPARATORS = re.compile(r"[/\\]")
# Names that are devices in every folder of Windows, whatever follows the point.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_KEPT = ".git"  # what is written in there runs later, as hooks and by configuration


class PathRefusedError(UserError):
    """A path that a tool may not touch; the model reads why."""


class Folders:
    """The folders of a chat, as they were resolved when the person named them: one to which a link leads now is used no
    more. Raises PathRefusedError for a path that is not in them, or that is hostile. Nothing is written in the folders
    that are `kept` unless the person named a folder in there."""

    def __init__(self, folders: Sequence[Path], kept: Sequence[Path] = ()) -> None:
        self._named = tuple(folders)
        self._folders = tuple(filter(is_as_named, folders))
        self._kept = tuple(Path(os.path.realpath(folder)) for folder in kept)

    @property
    def first(self) -> Path:
        """The folder in which relative paths and commands begin."""
        if not self._named:
            raise PathRefusedError("No folder is open to tools in this chat.", "Ask the user to add one with /tools.")
        self._check_as_named(self._named[0])
        return self._named[0]

    def find(self, text: str, *, is_written: bool = False) -> Path:
        """Return the resolved path that `text` means; there need not be a file. With `is_written` a file may be
        written there."""
        check_path_text(text)
        meant = Path(text) if Path(text).is_absolute() else self.first / text
        for folder in self._named:
            if meant.is_relative_to(folder):
                self._check_as_named(folder)
        path = Path(os.path.realpath(meant))
        if not any(path.is_relative_to(folder) for folder in self._folders):
            shown = ", ".join(map(str, self._folders))
            raise PathRefusedError(f"{text} leads outside the folders of this chat.", f"They are: {shown}.")
        try:
            str(path).encode()
        except UnicodeEncodeError:
            cause = f"{text} leads to a file whose name is not valid text."
            raise PathRefusedError(cause, "Choose another file.") from None
        if not is_written:
            return path
        if _KEPT in (part.lower() for part in path.parts):
            raise PathRefusedError(f"{text} is in a folder {_KEPT}, where tools do not write.", "Use git itself.")
        root = self.root_of(path)
        if any(path.is_relative_to(kept) and not root.is_relative_to(kept) for kept in self._kept):
            cause = f"{text} is in a folder of localllm, where tools do not write."  # mcp.json starts programs
            raise PathRefusedError(cause, "Ask the user to change it.")
        return path

    def root_of(self, path: Path) -> Path:
        """Return the folder of the chat that a path found here is in."""
        return next(folder for folder in self._folders if path.is_relative_to(folder))

    def shown(self, path: Path) -> str:
        """Return how `path` is named to model and person: from the first folder if it is in there, else whole, and in
        quotes where a character does not show."""
        if self._named and path.is_relative_to(self._named[0]):
            return quoted_name(path.relative_to(self._named[0]).as_posix())
        return quoted_name(str(path))

    def _check_as_named(self, folder: Path) -> None:
        if folder not in self._folders:
            cause = (
                f"The folder {folder} leads to {os.path.realpath(folder)} now: a link was put there since it was named."
            )
            raise PathRefusedError(cause, "Ask the user to look at it, and to name it again with /tools folder.")


def check_path_text(text: str, *, is_windows: bool = os.name == "nt") -> None:
    """Raise PathRefusedError for a text that no tool takes as a path, whatever the folders are."""
    if not text or len(text) > _MAX_CHARACTERS:
        raise PathRefusedError("A path is empty or too long.", "Name a file in the folders of this chat.")
    if "\0" in text or any(0xD800 <= ord(character) < 0xE000 for character in text):
        raise PathRefusedError("A path has characters that no name has.", "Name a file in the folders of this chat.")
    if len(parts := _SEPARATORS.split(text)) > _MAX_PARTS or any(len(part.encode()) > _MAX_NAME for part in parts):
        raise PathRefusedError("A path has too many folders or too long a name.", "Choose a shorter one.")
    if text.startswith(("//", "\\\\", "/\\", "\\/")):
        raise PathRefusedError(f"{text[:80]} is on another machine or a device.", "Use a path in the folders.")
    if ".." in (part.strip() for part in parts):
        raise PathRefusedError(f"{text[:80]} goes up with '..'.", "Write the path from the folder down.")
    if text == "~" or _HOME.match(text):
        raise PathRefusedError(f"{text[:80]} begins with '~', which is not expanded.", "Write the path itself.")
    has_drive = bool(_DRIVE.match(text))
    if has_drive and not (is_windows and re.match(r"[A-Za-z]:[/\\]", text)):
        raise PathRefusedError(f"{text[:80]} names a drive.", "Use a path in the folders.")
    if is_windows:
        _check_windows_names(text, parts[1:] if has_drive else parts)


def _check_windows_names(text: str, names: Sequence[str]) -> None:
    for name in names:
        if ":" in name:
            raise PathRefusedError(f"{text[:80]} names a stream of a file.", "Name the file.")
        if _DEVICES.fullmatch(name.rstrip(" .")):
            raise PathRefusedError(f"{text[:80]} names a device.", "Choose another name.")
        if name not in ("", ".") and name != name.rstrip(" ."):
            raise PathRefusedError(f"{text[:80]} has a name that ends with a space or point.", "Choose another name.")
