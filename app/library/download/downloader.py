"""Download of a file: parts in parallel, each with retries, hashed while they are written; rates and their limit.

Owns the distribution of parts, and what happens to a file with a wrong hash. Does not know the library's names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from app.library.download.events import Discarded, Fetching, Progress, Report, Retrying, Speedometer
from app.library.download.http_session import (
    HttpSession,
    NoRangesError,
    RangeSource,
    Retries,
    RetryPolicy,
    TransientError,
)
from app.library.download.partial_file import PartialFile, SequentialWriter
from app.library.download.remote_file import Range, RemoteFile, Schedule, StreamingHash
from app.library.hub.access import HubError

_PROGRESS_EVERY_S = 0.25
_N_DOWNLOADS = 2  # of a file with a wrong hash


class RateLimit:
    """Limits all readers together to `bytes_per_s`; 0 is no limit."""

    def __init__(self, bytes_per_s: int, now: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s = bytes_per_s
        self._now = now
        self._free_at_s = now()

    def wait_s(self, n_bytes: int) -> float:
        """Return how long to wait after reading `n_bytes` before reading more."""
        if not self._bytes_per_s:
            return 0.0
        now_s = self._now()
        self._free_at_s = max(self._free_at_s, now_s) + n_bytes / self._bytes_per_s
        return self._free_at_s - now_s

    async def throttle(self, n_bytes: int) -> None:
        if (wait_s := self.wait_s(n_bytes)) > 0:
            await asyncio.sleep(wait_s)


@dataclass(frozen=True, slots=True)
class DownloadOptions:
    """Options of downloads; `bytes_per_s` is a limit, 0 for none."""

    n_connections: int = 4
    bytes_per_s: int = 0
    retry: RetryPolicy = field(default_factory=RetryPolicy)


class Downloader:
    """Fetches files one after the other in one session."""

    def __init__(self, session: HttpSession, options: DownloadOptions, report: Report) -> None:
        self._session = session
        self._options = options
        self._report = report
        self._limit = RateLimit(options.bytes_per_s)

    async def fetch(self, file: RemoteFile, path: Path) -> str:
        """Fetch `file` to `path`, resuming a partial file, and return its hash. A partial file is kept for the next run
        unless its hash was wrong. Raises HubError, StorageError and RemoteChangedError."""
        with PartialFile(path, file.n_bytes, file.fingerprint) as partial:
            for n_left in reversed(range(_N_DOWNLOADS)):
                self._report(Fetching(file.name, file.n_bytes, partial.done.n_bytes, str(file.digest)))
                source, hasher = RangeSource(self._session, file), file.digest.hasher(file.n_bytes)
                with StreamingHash(partial.path, file.n_bytes, hasher) as hashing:
                    hashing.advance(partial.done.frontier)
                    await _Transfer(source, file, partial, hashing, self._limit, self._options, self._report).run()
                    found = await asyncio.to_thread(hashing.digest)
                if file.digest.is_met_by(found):
                    return found
                partial.restart()
                if n_left:
                    self._report(Discarded(file.name, f"its hash is {found} instead of {file.digest.hex}"))
        cause = f"{file.name} was fetched twice with a wrong hash."
        raise HubError(cause, "Nothing of it was kept. Try again later, or over another network.")


@dataclass(slots=True)
class _Transfer:
    """One attempt to fetch the missing ranges of a file."""

    source: RangeSource
    file: RemoteFile
    partial: PartialFile
    hasher: StreamingHash
    limit: RateLimit
    options: DownloadOptions
    report: Report

    async def run(self) -> None:
        """Fetch it all. Raises as `Downloader.fetch` does."""

        async def watch() -> None:
            speed = Speedometer()
            while True:
                self._report_progress(speed)
                await asyncio.sleep(_PROGRESS_EVERY_S)

        schedule = Schedule(self.partial.done.missing(self.file.n_bytes), self.options.n_connections)
        watching = asyncio.ensure_future(watch())
        try:
            await _gather(self._work(schedule) for _ in range(self.options.n_connections))
        except NoRangesError:
            missing = self.partial.done.missing(self.file.n_bytes)
            await self._fetch(Range(missing[0].begin, self.file.n_bytes))
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        self._report_progress(Speedometer())

    async def _work(self, schedule: Schedule) -> None:
        while (part := schedule.take()) is not None:
            await self._fetch(part)

    async def _fetch(self, part: Range) -> None:
        writer = SequentialWriter(self.partial, part.begin)
        retries = Retries(self.options.retry)
        while writer.at < part.end:
            try:
                await self._stream(writer, part.end, retries)
            except TransientError as fault:
                self.source.adapt(fault)
                try:
                    wait_s = retries.wait_s(fault)
                except TransientError as last:
                    cause = f"{self.file.name} could not be fetched: {last}."
                    raise HubError(cause, "What was fetched is kept: pull it again to resume.") from last
                self.report(Retrying(self.file.name, str(fault), wait_s))
                await asyncio.sleep(wait_s)

    async def _stream(self, writer: SequentialWriter, end: int, retries: Retries) -> None:
        try:
            async with aclosing(self.source.read(Range(writer.at, end))) as pieces:
                async for data in pieces:
                    writer.write(data)
                    retries.progressed()
                    self.hasher.advance(self.partial.done.frontier)
                    await self.limit.throttle(len(data))
        finally:
            writer.note()
            self.hasher.advance(self.partial.done.frontier)

    def _report_progress(self, speed: Speedometer) -> None:
        n_done, n_bytes = self.partial.done.n_bytes, self.file.n_bytes
        bytes_per_s = speed.bytes_per_s(n_done)
        remaining_s = (n_bytes - n_done) / bytes_per_s if bytes_per_s else None
        self.report(Progress(self.file.name, n_bytes, n_done, bytes_per_s, remaining_s))


async def _gather(works: Iterable[Coroutine[None, None, None]]) -> None:
    """Run all of them at once; the first error cancels the others and is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
