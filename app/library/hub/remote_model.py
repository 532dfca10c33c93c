"""A remote GGUF as a model to plan for: the headers of all its files, read over HTTP and validated.

Owns how much of each file is read: its header, and no weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from app.library.download.http_session import (
    HttpSession,
    NoRangesError,
    RangeSource,
    RemoteChangedError,
    Retries,
    RetryPolicy,
    TransientError,
)
from app.library.download.remote_file import Range, RemoteFile
from app.library.hub.access import HubError, unreachable_error
from offload.footprint.auxiliary_models import PlannedProjector
from offload.footprint.model import PlannedModel
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import Header, parse_header
from quantizer.gguf.projector_header import parse_projector
from quantizer.gguf.validation import check_weights, validate_header

QUICK_RETRIES = RetryPolicy(n_attempts=3, max_wait_s=2.0, max_retry_after_s=10.0)  # for interactive use
_FIRST_BYTES, _MOST_BYTES_AT_ONCE = 512 << 10, 4 << 20
_MOST_BYTES = 48 << 20  # of a header; vocabularies of 250,000 tokens with their merges take 12 MiB


class _MoreNeededError(Exception):
    """The header is longer than what was read: at least `stop` bytes."""

    def __init__(self, stop: int) -> None:
        super().__init__(stop)
        self.stop = stop


class RemoteHeader:
    """The first bytes of a file of `n_bytes`: a ByteSource that raises where it needs more."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self.data = bytearray()
        self._mark = ""

    def append(self, data: bytes, mark: str) -> None:
        """Append `data`. Raises RemoteChangedError where `mark` belongs to another content."""
        if self.data and mark != self._mark:
            raise RemoteChangedError
        self.data += data
        self._mark = mark

    def read(self, start: int, stop: int) -> bytes:
        stop = min(stop, self.n_bytes)
        if stop > len(self.data):
            raise _MoreNeededError(stop)
        return bytes(self.data[start:stop])


async def read_remote_model(
    session: HttpSession, files: Sequence[RemoteFile], policy: RetryPolicy = QUICK_RETRIES
) -> PlannedModel:
    """Read the headers of all `files` of a model, given in order. Raises HubError, and ModelFileError for a file that
    validation rejects."""
    first, *later = [await _read_header(session, file, policy) for file in files]
    validate_header(first)
    if (first.integer("split.count") or 1) != len(files):
        raise ModelFileError(f"{first.path.name} is a part of a split model.", "Name the whole model.")
    check_weights(first, later)
    return PlannedModel(first, (*first.tensors, *(tensor for header in later for tensor in header.tensors)))


async def read_remote_projector(
    session: HttpSession, file: RemoteFile, model: PlannedModel, policy: RetryPolicy = QUICK_RETRIES
) -> PlannedProjector:
    """Read the header of a projector of `model`. Raises HubError, and ModelFileError for a file of another model."""
    from app.engine.load.projector_file import check_projector_header

    header = await _read_header(session, file, policy)
    return PlannedProjector.of(check_projector_header(parse_projector(header), model.header), model.header)


async def _read_header(session: HttpSession, file: RemoteFile, policy: RetryPolicy) -> Header:
    """Double the bytes read until the header is complete: small ones cost little, large ones few requests."""
    source, head = RangeSource(session, file), RemoteHeader(file.n_bytes)
    stop = min(_FIRST_BYTES, file.n_bytes)
    while True:
        if stop > _MOST_BYTES:
            cause = f"The header of {file.name} is longer than {_MOST_BYTES >> 20} MiB."
            raise ModelFileError(cause, "Choose another.")
        await read_up_to(stop, source, head, file, policy)
        try:
            return parse_header(head, Path(file.name))
        except _MoreNeededError as more:
            grown = len(head.data) + min(len(head.data), _MOST_BYTES_AT_ONCE)
            stop = max(more.stop, min(grown, file.n_bytes))


async def read_up_to(stop: int, source: RangeSource, head: RemoteHeader, file: RemoteFile, policy: RetryPolicy) -> None:
    """Read until `head` has at least `stop` bytes. Raises HubError."""
    retries = Retries(policy)
    while len(head.data) < stop:
        try:
            async with aclosing(source.read(Range(len(head.data), stop))) as pieces:
                async for piece in pieces:
                    head.append(piece, source.mark)
                    retries.progressed()
        except TransientError as fault:
            try:
                source.adapt(fault)
                wait_s = retries.wait_s(fault)
            except NoRangesError as error:
                cause = f"The server of {file.name} does not support ranges."
                raise HubError(cause, "Download the file, and give its path.") from error
            except TransientError as last:
                raise unreachable_error(file.url, f"{file.name} could not be read, {last}") from last
            await asyncio.sleep(wait_s)
        except RemoteChangedError as error:
            raise HubError(f"{file.name} changed while it was read.", "Try again.") from error
