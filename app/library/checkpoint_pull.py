"""A checkpoint that is made a GGUF while it comes, by one process at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from app.library.checkpoint_store import CheckpointStore, was_made
from app.library.download.connection import Connection
from app.library.download.downloader import Downloader
from app.library.download.events import Chosen, Done
from app.library.order import Order
from app.library.pull import Place, Puller
from app.library.shard_heads import announced
from app.library.shard_stream import ShardStream
from app.library.staging import staged
from quantizer.errors import StorageError
from quantizer.events import Event
from quantizer.job import JobRequest

__all__ = ["CheckpointPuller", "check_free"]


@dataclass(frozen=True, slots=True)
class CheckpointPuller:
    """Brings a checkpoint and makes of it what `request` says; `hear` is told what the job says.

    With `is_removing` a shard goes once nothing more is made of it, and no more come than the conversion needs.
    """

    puller: Puller
    request: JobRequest
    is_removing: bool
    hear: Callable[[Event], None]

    async def pull(self, place: Place) -> Path:
        """Fetch and convert what `place` orders; returns the path of its config.json.

        Raises as `Puller.pull` does, and as the job does.
        """
        return await self.puller.attempt(place, self._made)

    async def _made(self, connection: Connection, order: Order) -> Path:
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

    async def _streamed(self, connection: Connection, store: CheckpointStore) -> None:
        weights = store.weights
        for file in store.order.files:
            if file not in weights:
                await store.bring(file.name)
        shards = await announced(connection, store.staging, weights, self.puller.options.retry)
        request = replace(self.request, shards=shards)
        stream = ShardStream(store, request, is_removing=self.is_removing, report=self.puller.report)
        await stream.run(self.hear)


def check_free(folder: Path, output: Path, *, is_overwriting: bool) -> None:
    """Raise StorageError where something is in the place of `output` that nobody said should go."""
    if output.exists() and not is_overwriting and not was_made(folder, output):
        raise StorageError(f"{output} exists already.", "Pass --overwrite to replace it.")
