"""The files that a pasted text names: what terminals write when a file is dropped on them, or copied in a file manager.

Owns the forms: a path in quotes or with escaped blanks, a file URL, several of them in a row or one a line.
"""

from __future__ import annotations

import re
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

_MAX_CHARACTERS = 16_384
_MAX_FILES = 32
_BEGINS_A_PATH = re.compile(r"[/~'\"]|file:|[A-Za-z]:[\\/]")
_OF_A_SERVER = ("//", "\\\\")  # Windows would sign in there at the mere question whether it exists


def pasted_paths(text: str, platform: str = sys.platform) -> tuple[Path, ...]:
    """Return the files that `text` names; none if any part of it is something else than the full path of a file.

    A relative name is a word like any other.
    """
    text = text.strip()
    if len(text) > _MAX_CHARACTERS or not _BEGINS_A_PATH.match(text):
        return ()
    for words in ([text], text.splitlines(), _words(text, platform)):
        paths = [_file(word.strip(), platform) for word in words if word.strip()]
        if 0 < len(paths) <= _MAX_FILES and None not in paths:
            return tuple(dict.fromkeys(path for path in paths if path is not None))
    return ()


def _words(text: str, platform: str) -> Sequence[str]:
    try:
        return [word.strip("'\"") for word in shlex.split(text, posix=platform != "win32")]
    except ValueError:  # a quotation mark that is not closed
        return ()


def _file(word: str, platform: str) -> Path | None:
    """Return the file with this full path or URL, None if there is none."""
    try:
        path = _path_of_url(word, platform) if word.startswith("file:") else Path(word).expanduser()
        if path is None or not path.is_absolute() or str(path).startswith(_OF_A_SERVER):
            return None
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, no home folder, or a character that no name has
        return None


def _path_of_url(url: str, platform: str) -> Path | None:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost", socket.gethostname()):
        return None
    path = unquote(parts.path)
    return Path(path.lstrip("/") if platform == "win32" else path)
