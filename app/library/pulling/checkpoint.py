"""The heads of shards: what a file of safetensors says of its tensors, fetched before the file is.

Owns where they lie meanwhile, each under a name that tells of which content it is. What is in them is not believed:
they are read as any checkpoint is, and held against the shard once that came and its hash was right.

A checkpoint that is made a GGUF while it comes, by one process at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.library.download.downloader import Downloader
from app.library.download.events import Chosen, Done
from app.library.download.http_session import HttpSession, RangeSource
from app.library.download.remote_file import RemoteFile
from app.library.download.replies import RetryPolicy
from app.library.hub.remote_model import RemoteHeader, read_up_to
from app.library.pulling.checkpoint_store import CheckpointStore, was_made
from app.library.pulling.puller import MakePlan, Puller, PullPlan
from app.library.pulling.shard_stream import ShardStream
from app.library.pulling.staging import Staging, staged
from quantizer.checkpoint.pending_shards import PendingShard
from quantizer.errors import CheckpointError, StorageError
from quantizer.files import write_atomically
from quantizer.gguf.byte_source import open_local
from quantizer.write.events import Event
from quantizer.write.job import JobRequest

__all__ = ["CheckpointPuller", "check_free", "fetch_shard_headers"]

_FIRST_BYTES = 64 << 10  # as much is most often enough
_LENGTH_BYTES = 8
_MOST_BYTES = 100_000_000  # the limit of the safetensors library itself
_N_AT_ONCE = 4


async def fetch_shard_headers(
    connection: HttpSession, staging: Staging, files: Sequence[RemoteFile], policy: RetryPolicy
) -> tuple[PendingShard, ...]:
    """Return the shards that `files` are, their heads in `staging`: fetched, but for those of files that stand.

    Raises HubError, CheckpointError for what is no safetensors, StorageError.
    """
    turns = asyncio.Semaphore(_N_AT_ONCE)

    async def announce(file: RemoteFile) -> PendingShard:
        async with turns:
            path, whole = staging.made(f"{file.name}.{file.digest.hex[:16]}.head"), staging.target(file.name)
            if not path.exists():
                _write(path, _read(whole) if whole.exists() else await _fetched(connection, file, policy))
            return PendingShard(file.name, file.n_bytes, file.fingerprint, str(path))

    return tuple(await asyncio.gather(*map(announce, files)))


async def _fetched(connection: HttpSession, file: RemoteFile, policy: RetryPolicy) -> bytes:
    source, head = RangeSource(connection, file), RemoteHeader(file.n_bytes)
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
    try:
        write_atomically(path, head, sync=False)
    except OSError as error:
        raise StorageError(f"{path.name} could not be written: {error.strerror}.", "Free some space.") from error


@dataclass(frozen=True, slots=True)
class CheckpointPuller:
    """Brings a checkpoint and makes of it what `request` says; `on_event` is told what the job says.

    With `is_removing` a shard goes once nothing more is made of it, and no more come than the conversion needs.
    """

    puller: Puller
    request: JobRequest
    is_removing: bool
    on_event: Callable[[Event], None]

    async def pull(self, place: MakePlan) -> Path:
        """Fetch and convert what `place` orders; returns the path of its config.json.

        Raises as `Puller.pull` does, and as the job does.
        """
        return await self.puller.retry_on_change(place, self._made)

    async def _made(self, connection: HttpSession, order: PullPlan) -> Path:
        report, first, output = self.puller.report, order.files[0].name, Path(self.request.output)
        report(Chosen(order.source, first, len(order.files), order.n_bytes, order.reason))
        async with staged(order.folder, [file.name for file in order.files], report) as staging:
            store = CheckpointStore(self.puller, Downloader(connection, self.puller.options, report), staging, order)
            if not was_made(order.folder, output):
                check_free(order.folder, output, is_overwriting=self.request.is_overwriting)
                store.begin(output)
                await self._streamed(connection, store)
            report(Done(str(staging.target(first)), order.n_bytes, store.hashes(), store.is_new))
            await asyncio.to_thread(store.clear, output, is_removing=self.is_removing)
            return staging.target(first)

    async def _streamed(self, connection: HttpSession, store: CheckpointStore) -> None:
        weights = store.weights
        for file in store.order.files:
            if file not in weights:
                await store.bring(file.name)
        shards = await fetch_shard_headers(connection, store.staging, weights, self.puller.options.retry)
        request = replace(self.request, shards=shards)
        stream = ShardStream(store, request, is_removing=self.is_removing, report=self.puller.report)
        await stream.run(self.on_event)


def check_free(folder: Path, output: Path, *, is_overwriting: bool) -> None:
    """Raise StorageError where something is in the place of `output` that nobody said should go."""
    if output.exists() and not is_overwriting and not was_made(folder, output):
        raise StorageError(f"{output} exists already.", "Pass --overwrite to replace it.")
