"""Files of any kind → attachments whose pictures and sounds are kept: a message may refer to them at once.

Owns what of the files read lately is remembered: the forecast and the question read the same ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.attachments.page_choice import ALL_PAGES, PageChoice
from app.chat.conversation import Attachment

if TYPE_CHECKING:
    from app.chat.attachments.reader import ReadAttachment


_N_REMEMBERED = 16


@dataclass(frozen=True, slots=True)
class _Version:
    """A file as it was when it was read."""

    path: Path
    name: str
    pages: PageChoice
    modified_ns: int
    n_bytes: int


class AttachmentReader:
    """Reads in a thread; `keep` stores the contents of pictures and sounds by their SHA-256."""

    def __init__(self, keep: Callable[[Mapping[str, bytes]], Awaitable[None]]) -> None:
        self._keep = keep
        self._latest: dict[_Version, Attachment] = {}

    async def read_file(self, path: Path, name: str, pages: PageChoice = ALL_PAGES) -> Attachment:
        """Return the file at `path` as an attachment called `name`. Raises UserError; see
        `app.chat.attachments.reader.read_file`."""
        version = await asyncio.to_thread(_version, path, name, pages)
        found = self._latest.get(version) if version else None
        if found is None:
            found = await self._kept(await asyncio.to_thread(_read_file, path, name, pages))
            if version:
                self._latest[version] = found
                while len(self._latest) > _N_REMEMBERED:
                    del self._latest[next(iter(self._latest))]
        return found

    async def read_data(self, data: bytes, name: str) -> Attachment:
        """Return bytes that come from no file as an attachment called `name`. Raises UserError."""
        return await self._kept(await asyncio.to_thread(_read_data, data, name))

    async def _kept(self, read: ReadAttachment) -> Attachment:
        await self._keep(read.contents)
        return read.attachment


def _version(path: Path, name: str, pages: PageChoice) -> _Version | None:
    """Return what tells a file from what it may become; None if it cannot be read, which reading it reports."""
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return None
    return _Version(path, name, pages, stat.st_mtime_ns, stat.st_size)


def _read_file(path: Path, name: str, pages: PageChoice) -> ReadAttachment:
    from app.chat.attachments.reader import read_file

    return read_file(path, name, pages)


def _read_data(data: bytes, name: str) -> ReadAttachment:
    from app.chat.attachments.reader import read_data

    return read_data(data, name)
