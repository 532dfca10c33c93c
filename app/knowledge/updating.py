"""An update of folders beside a user interface: reading what changed in a child process, and the vectors of what is new
in a thread. What `localllm knowledge` does in its own process, the app does by this.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from app.knowledge.embedding import EmbedProgress, embed_passages
from app.knowledge.models import Connect, EmbedderIdentity
from app.knowledge.reading import ReadProgress
from app.knowledge.store import KnowledgeStore
from quantizer.system.child_request import open_child
from quantizer.system.process import lower_priority, python_command

_BATCH = 4  # passages, less than a second of a processor: an answer that begins meanwhile waits no longer
_STOPPED_WITHIN_S = 0.2


@dataclass(frozen=True, slots=True)
class FolderRead:
    """How far reading the folder at `path` is; `problem` says why it was not read, "" where it is."""

    path: str
    progress: ReadProgress
    problem: str = ""


async def read_folders(
    data_dir: Path, folders: Sequence[Path], excluded: Sequence[Path], *, is_behind: bool = False
) -> AsyncGenerator[FolderRead, None]:
    """Read what is new or changed in these added folders, without any in all, and yield how far it is. With `is_behind`
    it gets the least processor time of all. Closing the iterator ends it, and what was read stays. Raises StorageError
    where the disk takes no more, UsageError where another process changes the knowledge, EngineError."""
    paths, left_out = [str(path) for path in folders], [str(path) for path in excluded]
    request = {"data_dir": str(data_dir), "folders": paths, "excluded": left_out}
    command = python_command("app.knowledge.update_child")
    async with open_child(command, request, "folder reader", "Try again.") as (child, messages):
        await asyncio.to_thread(lower_priority, child.pid, is_lowest=is_behind)
        async for message in messages:
            progress = ReadProgress(**message["progress"])
            yield FolderRead(message["folder"], progress, message.get("problem", ""))


async def embed_new(
    data_dir: Path, connect: Connect, embedder: EmbedderIdentity
) -> AsyncGenerator[EmbedProgress, None]:
    """Give each passage of the knowledge its vector, by the models to which `connect` leads, and yield how far it is.
    Closing the iterator ends it, and keeps the batches that are stored. Raises StorageError, UsageError where another
    process changes the knowledge, and the errors of the models."""
    loop, steps = asyncio.get_running_loop(), asyncio.Queue[EmbedProgress | None]()
    must_stop = threading.Event()

    def work() -> None:  # in a thread with a loop and a connection of its own: a store is for one thread
        try:
            asyncio.run(watched())
        finally:
            tell(None)

    async def watched() -> None:
        embedding = asyncio.create_task(_embed(data_dir, connect, embedder, tell))
        while not embedding.done():
            await asyncio.wait({embedding}, timeout=_STOPPED_WITHIN_S)
            if must_stop.is_set():  # also while the models let others go first
                embedding.cancel()
        if not embedding.cancelled():
            embedding.result()

    def tell(step: EmbedProgress | None) -> None:
        loop.call_soon_threadsafe(steps.put_nowait, step)

    working = asyncio.create_task(asyncio.to_thread(work))
    try:
        while (step := await steps.get()) is not None:
            yield step
        await working
    finally:
        must_stop.set()
        await asyncio.shield(asyncio.gather(working, return_exceptions=True))


async def _embed(
    data_dir: Path,
    connect: Connect,
    embedder: EmbedderIdentity,
    tell: Callable[[EmbedProgress], None],
) -> None:
    with KnowledgeStore(data_dir) as store, store.writing_alone():
        store.use_embedder(embedder)
        if not store.n_without_vector():
            return
        async with connect() as models, aclosing(embed_passages(store, models, embedder, _BATCH)) as steps:
            async for step in steps:
                tell(step)
