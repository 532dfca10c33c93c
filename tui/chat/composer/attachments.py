"""What can be attached to a question: long pastes, files that completion offers or a paste names, and reading them.

`app.chat.attachments` reads one file, and owns how a model receives it. No widgets: the chat in the scrollback has
attachments too.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from app.chat.attachments.parsing import ALL_PAGES, PageChoice
from app.chat.conversation import Attachment

if TYPE_CHECKING:
    from app.chat.attachments.reader import ReadAttachment


_LONG_CHARACTERS = 1000
_LONG_LINES = 12
MAX_FILES = 20_000
_NOISE = frozenset({"node_modules", "__pycache__", "venv", "target", "build", "dist", "site-packages"})
_READER = "app.chat.attachments.reader"  # imported in the thread that reads: the screen must not wait for it
_N_REMEMBERED = 16
_MAX_PASTED_CHARACTERS, _MAX_PASTED_FILES = 16_384, 32
_BEGINS_A_PATH = re.compile(r"[/~'\"]|file:|[A-Za-z]:[\\/]")
_OF_A_SERVER = ("//", "\\\\")  # Windows would sign in there at the mere question whether it exists


def is_long(text: str) -> bool:
    """Return whether a pasted text is long enough to become an attachment."""
    return len(text) > _LONG_CHARACTERS or text.count("\n") >= _LONG_LINES


def pasted(text: str, others: Sequence[Attachment]) -> Attachment:
    """Return a pasted text as an attachment with a name unique among `others`."""
    return Attachment(unused_name("pasted", others), text)


def unused_name(word: str, others: Sequence[Attachment]) -> str:
    """Return `word` with the first number that makes it a name of none of `others`."""
    names = {attachment.name for attachment in others}
    return next(name for number in range(1, len(names) + 2) if (name := f"{word} {number}") not in names)


def files_below(folder: Path) -> list[str]:
    """Return the paths of files below `folder`, relative and with slashes, the nearest first; at most 20,000.

    Skips hidden files, generated folders, links and unreadable entries.
    """
    return list(islice(_walk(folder), MAX_FILES))


def _walk(folder: Path) -> Iterator[str]:
    waiting = deque([""])
    while waiting:
        relative = waiting.popleft()
        try:
            with os.scandir(folder / relative) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _NOISE:
                    waiting.append(f"{relative}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                yield f"{relative}{entry.name}"


def complete_path(typed: str, folder: Path) -> list[str]:
    """Return the regular files and the folders (with a trailing slash) whose name begins with `typed`.

    Hidden ones only if a dot was typed; nothing from an unreadable folder.
    """
    relative, _, begun = typed.rpartition("/")
    above = f"{relative}/" if "/" in typed else ""
    try:
        with os.scandir(path_of(above, folder)) as found:
            entries = [(entry.name, entry.is_dir()) for entry in found if entry.is_dir() or entry.is_file()]
    except OSError:
        return []
    return sorted(
        f"{above}{name}{'/' if is_folder else ''}"
        for name, is_folder in entries
        if name.startswith(begun) and (begun.startswith(".") or not name.startswith("."))
    )


def leads_outside(typed: str) -> bool:
    """Return whether a typed name leaves the working folder: ~/, ../, / or a drive."""
    return typed.startswith(("~", "../", "/", "..\\")) or Path(typed).is_absolute()


def path_of(name: str, folder: Path) -> Path:
    """Return the path of the file `name`, relative to `folder`; ~ is the home folder."""
    try:
        return folder / Path(name).expanduser()
    except RuntimeError:  # ~user without a home folder
        return folder / name


class AttachmentReader:
    """Reads in a thread; `keep` stores the contents of pictures and sounds by their SHA-256.

    Remembers the latest files: the forecast of the context and the question read the same ones.
    """

    def __init__(self, keep: Callable[[Mapping[str, bytes]], Awaitable[None]]) -> None:
        self._keep = keep
        self._latest: dict[tuple[object, ...], Attachment] = {}  # by file, name, pages, time of change and size

    async def read_file(self, path: Path, name: str, pages: PageChoice = ALL_PAGES) -> Attachment:
        """Return the file at `path` as an attachment called `name`. Raises UserError; see
        `app.chat.attachments.reader.read_file`."""
        version: tuple[object, ...] | None = None
        with suppress(OSError, ValueError):  # reading it reports why it cannot be read
            stat = await asyncio.to_thread(path.stat)
            version = (path, name, pages, stat.st_mtime_ns, stat.st_size)
        found = self._latest.get(version) if version else None
        if found is None:
            found = await self._kept(lambda: import_module(_READER).read_file(path, name, pages))
            if version:
                self._latest[version] = found
                while len(self._latest) > _N_REMEMBERED:
                    del self._latest[next(iter(self._latest))]
        return found

    async def read_data(self, data: bytes, name: str) -> Attachment:
        """Return bytes that come from no file as an attachment called `name`. Raises UserError."""
        return await self._kept(lambda: import_module(_READER).read_data(data, name))

    async def _kept(self, read: Callable[[], ReadAttachment]) -> Attachment:
        found = await asyncio.to_thread(read)
        await self._keep(found.contents)
        return found.attachment


def pasted_paths(text: str, platform: str = sys.platform) -> tuple[Path, ...]:
    """Return the files that `text` names; none if any part of it is something else than the full path of a file.

    Terminals write such texts when files are dropped on them, file managers when files are copied: a path in quotes or
    with escaped blanks, a file URL, several of them in a row or one a line. A relative name is a word like any other.
    """
    text = text.strip()
    if len(text) > _MAX_PASTED_CHARACTERS or not _BEGINS_A_PATH.match(text):
        return ()
    try:
        shell_words = [word.strip("'\"") for word in shlex.split(text, posix=platform != "win32")]
    except ValueError:  # a quotation mark that is not closed
        shell_words = []
    for words in ([text], text.splitlines(), shell_words):
        paths = [_file(word.strip(), platform) for word in words if word.strip()]
        if 0 < len(paths) <= _MAX_PASTED_FILES and None not in paths:
            return tuple(dict.fromkeys(path for path in paths if path is not None))
    return ()


def _file(word: str, platform: str) -> Path | None:
    """Return the file with this full path or URL, None if there is none."""
    try:
        if word.startswith("file:"):
            parts = urlsplit(word)
            if parts.netloc not in ("", "localhost", socket.gethostname()):
                return None
            word = unquote(parts.path)
            path = Path(word.lstrip("/") if platform == "win32" else word)
        else:
            path = Path(word).expanduser()
        is_local = path.is_absolute() and not str(path).startswith(_OF_A_SERVER)
        return path if is_local and path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, no home folder, or a character that no name has
        return None
