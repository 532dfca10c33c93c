"""Pulls of checkpoints that are converted to a GGUF while they are fetched, by one process at a time.

Owns the steps, and the shards' headers: the first bytes of each safetensors file, fetched before the file, stored under
a name with its hash, and compared with the shard once that is complete.
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
from app.library.pulling.checkpoint_store import CheckpointStore, was_converted
from app.library.pulling.puller import MakePlan, Puller, PullPlan
from app.library.pulling.shard_stream import ShardStream
from app.library.pulling.staging import Staging, staged
from quantizer.checkpoint.pending_shards import PendingShard
from quantizer.errors import CheckpointError, StorageError
from quantizer.files import explained, write_atomically
from quantizer.gguf.byte_source import open_local
from quantizer.write.events import Event
from quantizer.write.job import JobRequest

__all__ = ["CheckpointPuller", "check_free", "fetch_shard_headers"]

_FIRST_BYTES = 64 << 10  # usually enough
_LENGTH_BYTES = 8
_MOST_BYTES = 100_000_000  # the limit of the safetensors library itself
_N_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class CheckpointPuller:
    """Fetches a checkpoint and runs the conversion `request`, whose events go to `on_event`.

    With `is_removing` each shard is removed after its last use, and fetched only when the conversion needs it.
    """

    puller: Puller
    request: JobRequest
    is_removing: bool
    on_event: Callable[[Event], None]

    async def pull(self, make_plan: MakePlan) -> Path:
        """Fetch and convert the planned checkpoint; return the path of its config.json.

        Raises as `Puller.pull` and the job do.
        """
        return await self.puller.retry_on_change(make_plan, self._run)

    async def _run(self, session: HttpSession, plan: PullPlan) -> Path:
        report, first, output = self.puller.report, plan.files[0].name, Path(self.request.output)
        report(Chosen(plan.source, first, len(plan.files), plan.n_bytes, plan.reason))
        async with staged(plan.folder, [file.name for file in plan.files], report) as staging:
            store = CheckpointStore(self.puller, Downloader(session, self.puller.options, report), staging, plan)
            if not was_converted(plan.folder, output):
                check_free(plan.folder, output, is_overwriting=self.request.is_overwriting)
                store.begin(output)
                await self._convert(session, store)
            report(Done(str(staging.target(first)), plan.n_bytes, store.hashes(), store.is_new))
            await asyncio.to_thread(store.clear, output, is_removing=self.is_removing)
            return staging.target(first)

    async def _convert(self, session: HttpSession, store: CheckpointStore) -> None:
        weights = store.weights
        for file in store.plan.files:
            if file not in weights:
                await store.fetch(file.name)
        shards = await fetch_shard_headers(session, store.staging, weights, self.puller.options.retry)
        request = replace(self.request, shards=shards)
        stream = ShardStream(store, request, is_removing=self.is_removing, report=self.puller.report)
        await stream.run(self.on_event)


def check_free(folder: Path, output: Path, *, is_overwriting: bool) -> None:
    """Raise StorageError if `output` exists and may not be overwritten."""
    if output.exists() and not is_overwriting and not was_converted(folder, output):
        raise StorageError(f"{output} exists already.", "Pass --overwrite to replace it.")


async def fetch_shard_headers(
    session: HttpSession, staging: Staging, files: Sequence[RemoteFile], policy: RetryPolicy
) -> tuple[PendingShard, ...]:
    """Return the shards of `files` with their headers in `staging`: fetched, or read from a file that is complete.

    Raises HubError, CheckpointError for a file that is not safetensors, StorageError.
    """
    limit = asyncio.Semaphore(_N_AT_ONCE)

    async def shard(file: RemoteFile) -> PendingShard:
        async with limit:
            path, whole = staging.prepared_path(f"{file.name}.{file.digest.hex[:16]}.head"), staging.target(file.name)
            if not path.exists():
                header = _read(whole) if whole.exists() else await _fetch_header(session, file, policy)
                with explained(f"{path.name} could not be written", "Free some space."):
                    write_atomically(path, header, sync=False)
            return PendingShard(file.name, file.n_bytes, file.fingerprint, str(path))

    return tuple(await asyncio.gather(*map(shard, files)))


async def _fetch_header(session: HttpSession, file: RemoteFile, policy: RetryPolicy) -> bytes:
    source, head = RangeSource(session, file), RemoteHeader(file.n_bytes)
    await read_up_to(min(_FIRST_BYTES, file.n_bytes), source, head, file, policy)
    n_bytes = _header_bytes(bytes(head.data[:_LENGTH_BYTES]), file.n_bytes, file.name)
    await read_up_to(n_bytes, source, head, file, policy)
    return bytes(head.data[:n_bytes])


def _read(path: Path) -> bytes:
    shard = open_local(path)
    return shard.read(0, _header_bytes(shard.read(0, _LENGTH_BYTES), shard.n_bytes, path.name))


def _header_bytes(length: bytes, file_bytes: int, name: str) -> int:
    n_bytes = _LENGTH_BYTES + int.from_bytes(length, "little")
    if n_bytes > min(_MOST_BYTES, file_bytes):
        raise CheckpointError(f"{name} is not a valid safetensors file.", "Look for another checkpoint.")
    return n_bytes
