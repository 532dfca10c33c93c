"""The heads of shards: what a file of safetensors says of its tensors, fetched before the file is.

Owns where they lie meanwhile, each under a name that tells of which content it is. What is in them is not believed:
they are read as any checkpoint is, and held against the shard once that came and its hash was right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from app.library.download.connection import Connection
from app.library.download.retries import RetryPolicy
from app.library.download.source import Source
from app.library.remote_file import RemoteFile
from app.library.remote_model import RemoteHead, read_up_to
from app.library.staging import Staging
from quantizer.arriving import Shard
from quantizer.errors import CheckpointError, StorageError
from quantizer.source import open_local

__all__ = ["announced"]

_FIRST_BYTES = 64 << 10  # as much is most often enough
_LENGTH_BYTES = 8
_MOST_BYTES = 100_000_000  # the limit of the safetensors library itself
_N_AT_ONCE = 4


async def announced(
    connection: Connection, staging: Staging, files: Sequence[RemoteFile], policy: RetryPolicy
) -> tuple[Shard, ...]:
    """Return the shards that `files` are, their heads in `staging`: fetched, but for those of files that stand.

    Raises HubError, CheckpointError for what is no safetensors, StorageError.
    """
    turns = asyncio.Semaphore(_N_AT_ONCE)

    async def announce(file: RemoteFile) -> Shard:
        async with turns:
            path, whole = staging.made(f"{file.name}.{file.digest.hex[:16]}.head"), staging.target(file.name)
            if not path.exists():
                _write(path, _read(whole) if whole.exists() else await _fetched(connection, file, policy))
            return Shard(file.name, file.n_bytes, file.fingerprint, str(path))

    return tuple(await asyncio.gather(*map(announce, files)))


async def _fetched(connection: Connection, file: RemoteFile, policy: RetryPolicy) -> bytes:
    source, head = Source(connection, file), RemoteHead(file.n_bytes)
    await read_up_to(min(_FIRST_BYTES, file.n_bytes), source, head, file, policy)
    n_bytes = _head_bytes(bytes(head.data[:_LENGTH_BYTES]), file.n_bytes, file.name)
    await read_up_to(n_bytes, source, head, file, policy)
    return bytes(head.data[:n_bytes])


def _read(path: Path) -> bytes:
    shard = open_local(path)
    return shard.read(0, _head_bytes(shard.read(0, _LENGTH_BYTES), shard.n_bytes, path.name))


def _head_bytes(length: bytes, file_bytes: int, name: str) -> int:
    n_bytes = _LENGTH_BYTES + int.from_bytes(length, "little")
    if n_bytes > min(_MOST_BYTES, file_bytes):
        raise CheckpointError(f"{name} is not a sound safetensors file.", "Look for another checkpoint.")
    return n_bytes


def _write(path: Path, head: bytes) -> None:
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_bytes(head)
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"{path.name} could not be written: {error.strerror}.", "Free some space.") from error
