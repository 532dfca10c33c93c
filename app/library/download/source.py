"""Reading ranges of one remote file.

Owns the link that the hub gave out, which may expire, and the mark of the content in the storage behind it. A read that
fails raises a FaultError; who tries again, and how often, is not known here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx

from app.library.download.connection import Connection
from app.library.download.ranges import Range
from app.library.download.replies import Expected, FaultError, body_of
from app.library.refusals import refusal
from app.library.remote_file import RemoteFile

__all__ = ["NoRangesError", "RemoteChangedError", "Source"]

_N_REFUSED_RANGES = 3


class NoRangesError(Exception):
    """The server sends whole files only."""


class RemoteChangedError(Exception):
    """The hub has another file there now than the one that was asked for."""


class Source:
    """A remote file whose ranges can be read, by several readers at once."""

    def __init__(self, connection: Connection, file: RemoteFile) -> None:
        self._connection = connection
        self._file = file
        self._link = file.url
        self._mark = file.mark
        self._n_refused_ranges = 0

    @property
    def mark(self) -> str:
        """The mark of the content that was read last, empty without one."""
        return self._mark

    async def read(self, part: Range) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of `part` in order, and no more of a server that sends more.

        Raises FaultError where it ends early, which `learn` should hear of, HubError where the hub refuses, and
        RemoteChangedError.
        """
        async with self._connection.answer(self._link, self._headers(part), self._check) as reply:
            at = self._begin(reply, part)
            async for piece in reply.aiter_raw():
                data = piece[max(part.begin - at, 0) : part.end - at]
                at += len(piece)
                if data:
                    yield data
                if at >= part.end:
                    return
        raise FaultError("it hangs up in the middle")

    def learn(self, fault: FaultError) -> None:
        """Ask otherwise the next time, where that helps. Raises NoRangesError once that is plain."""
        if fault.is_stale:
            self._link, self._mark = self._file.url, self._file.mark
        if fault.has_no_ranges:
            self._n_refused_ranges += 1
            if not self._has_ranges:
                raise NoRangesError from fault

    def _headers(self, part: Range) -> dict[str, str]:
        if not self._has_ranges:
            return {}
        unchanged = {"If-Range": self._mark} if self._mark else {}
        return {"Range": f"bytes={part.begin}-{part.end - 1}", **unchanged}

    def _check(self, url: str, reply: httpx.Response) -> None:
        """Hold what the hub itself says of the file against what it said before."""
        if not self._connection.access.is_home(url):
            return
        if (error := refusal(reply.status_code, reply.headers, self._file.name)) is not None:
            raise error
        linked = reply.headers.get("X-Linked-Etag", "").strip('"')
        if linked and self._file.digest.kind == "sha256" and not self._file.digest.is_met_by(linked):
            raise RemoteChangedError

    def _begin(self, reply: httpx.Response, part: Range) -> int:
        """Where in the file the body begins, once it is known to be of use."""
        asked = part if self._has_ranges else Range(0, self._file.n_bytes)
        body = body_of(reply.status_code, reply.headers, Expected(asked, self._file.n_bytes, self._mark))
        self._link, self._mark = str(reply.url), body.mark
        return body.begin

    @property
    def _has_ranges(self) -> bool:
        return self._n_refused_ranges < _N_REFUSED_RANGES
