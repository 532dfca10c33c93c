"""Updates of the folders for the whole app, one at a time: those that the person asks for, and those in the background,
behind everything else. Owns when the background looks for changes, and what is said of an update."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from app.client.background_models import BackgroundModels
from app.client.launcher import running_service
from app.common.terminal import counted, printable_line
from app.knowledge.choices import add_folder, choose_embedder, own_folders
from app.knowledge.models import Connect, EmbedderIdentity
from app.knowledge.search import Found, connected_search
from app.knowledge.store import FolderSummary, KnowledgeStore
from app.knowledge.updating import FolderRead, embed_new, read_folders
from app.settings.settings import Settings
from offload.devices.host import runs_on_battery
from quantizer.system.errors import UsageError, UserError
from tui.design.words import cut

_T = TypeVar("_T")

_LEAST_PAUSE_S = 120.0
_PAUSE_FOR_EACH_S = 50  # of looking: at most a fiftieth of a processor's time looks for changes
_LOOK_AGAIN_S = 20.0  # where something else came first
_NAME_CELLS = 40
_BUSY = UsageError("The folders are being updated.", "Wait for its end, or stop it (Esc).")


class KnowledgeUpdater:
    """`words` say how far an update is, "" while none runs, and `note` how the last one of the person ended. Each
    callback of `on_change` is called when one of them changes. `connect` leads to the models of the service, None where
    there are none."""

    def __init__(
        self,
        settings: Settings,
        connect: Connect | None,
        connect_behind: Connect | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.words = self.note = ""
        self.share: float | None = None
        self.on_change: list[Callable[[], None]] = []
        self._settings = settings
        self._connect = connect
        self._connect_behind = connect_behind
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None
        self._is_behind = False  # the task that runs

    @classmethod
    def of_app(cls, settings: Settings) -> KnowledgeUpdater:
        """Return one for these settings: answers of another engine have no service of this user beside them."""
        if settings.connect:
            return cls(settings, None, None)
        return cls(settings, partial(running_service, settings), partial(_behind, settings))

    @property
    def is_running(self) -> bool:
        """Whether an update that the person asked for is running."""
        return self._task is not None and not self._task.done() and not self._is_behind

    # What the person asks for. Each raises UserError.

    async def add(self, path: Path) -> Path:
        """Add a folder and begin to read it; return it as it is called."""
        await self._claim()
        folder = await asyncio.to_thread(self._changed, lambda store: add_folder(store, path, self._settings))
        self._begin([folder.path])
        return folder.path

    async def update(self, folders: Sequence[Path] = ()) -> None:
        """Begin to read what changed in folders, without any in all."""
        await self._claim()
        self._begin(folders)

    async def remove(self, path: Path) -> None:
        """Forget a folder and what was read of it."""
        await self._claim()

        def forget(store: KnowledgeStore) -> None:
            for folder in store.folders():
                if folder.path == path:
                    store.remove_folder(folder)

        await asyncio.to_thread(self._changed, forget)
        self._say("", note=f"Forgotten: {_name(path)}. The documents are untouched.")

    async def folders(self) -> tuple[FolderSummary, ...]:
        return await asyncio.to_thread(lambda: _read(self._settings.data_dir, KnowledgeStore.summaries))

    async def left_out(self, path: str) -> list[tuple[str, str]]:
        """Return the paths in a folder that were left out, and why."""

        def listed(store: KnowledgeStore) -> list[tuple[str, str]]:
            return [row for each in store.folders() if str(each.path) == path for row in store.left_out(each)]

        return await asyncio.to_thread(lambda: _read(self._settings.data_dir, listed))

    async def search(self, question: str, limit: int) -> Found:
        """Return the passages for a test question, with the scores by which they are ordered."""
        settings = self._settings
        return await connected_search(
            settings.data_dir, question, self._connect, limit=limit, reranker=settings.reranker
        )

    async def stop(self) -> None:
        """End what runs; what was read stays."""
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task})

    # In the background

    async def look_for_changes(self, is_on: Callable[[], bool], is_busy: Callable[[], bool]) -> None:
        """Read what changed again and again, unless the person's own update runs, the chat `is_busy`, or the machine
        runs on its battery. Runs until it is cancelled."""
        pause_s = _LOOK_AGAIN_S
        while True:
            await self._sleep(pause_s)
            pause_s = _LOOK_AGAIN_S
            if not is_on() or is_busy() or self.is_running or runs_on_battery():
                continue
            begun_s = time.monotonic()
            self._is_behind = True
            self._task = asyncio.create_task(self._update_behind())
            await asyncio.wait({self._task})
            pause_s = max(_LEAST_PAUSE_S, _PAUSE_FOR_EACH_S * (time.monotonic() - begun_s))

    async def _update_behind(self) -> None:
        # What fails here is said by the screen, a search, or an update that the person asks for.
        with suppress(UserError):
            if not await self.folders():
                return
            data_dir = self._settings.data_dir
            async with aclosing(read_folders(data_dir, (), own_folders(self._settings), is_behind=True)) as steps:
                async for step in steps:
                    self._say(f"{_reading(step)} in the background")
            embedder = await asyncio.to_thread(lambda: _read(data_dir, KnowledgeStore.embedder))
            if embedder is not None and self._connect_behind is not None:
                await self._embed(self._connect_behind, embedder, " in the background")
        self._say("")

    # Helpers

    async def _claim(self) -> None:
        """End what runs in the background. Raises UsageError while an update of the person runs."""
        if self.is_running:
            raise _BUSY
        await self.stop()

    def _begin(self, folders: Sequence[Path]) -> None:
        self._is_behind = False
        self._task = asyncio.create_task(self._update(folders))

    async def _update(self, folders: Sequence[Path]) -> None:
        ended: dict[str, str] = {}
        note = "Stopped: what was read stays, and an update goes on."
        try:
            data_dir = self._settings.data_dir
            async with aclosing(read_folders(data_dir, folders, own_folders(self._settings))) as steps:
                async for step in steps:
                    self._say(_reading(step))
                    ended[step.path] = _ended(step)
            before = await asyncio.to_thread(lambda: _read(data_dir, KnowledgeStore.embedder))
            embedder = await asyncio.to_thread(choose_embedder, before, self._settings)
            if embedder is not None and self._connect is not None:
                await self._embed(self._connect, embedder)
            note = " ".join(ended.values())
        except UserError as error:
            note = " ".join([*ended.values(), str(error)])
        finally:
            self._say("", note=note)

    async def _embed(self, connect: Connect, embedder: EmbedderIdentity, where: str = "") -> None:
        async with aclosing(embed_new(self._settings.data_dir, connect, embedder)) as steps:
            async for step in steps:
                words = f"{printable_line(embedder.model)} reads passages{where}: {step.n_done:,} of {step.n_total:,}"
                self._say(words, share=step.n_done / max(step.n_total, 1))

    def _changed(self, change: Callable[[KnowledgeStore], _T]) -> _T:
        with KnowledgeStore(self._settings.data_dir) as store, store.writing_alone():
            return change(store)

    def _say(self, words: str, *, share: float | None = None, note: str | None = None) -> None:
        self.words, self.share = words, share
        self.note = self.note if note is None else note
        for callback in self.on_change:
            callback()


@asynccontextmanager
async def _behind(settings: Settings) -> AsyncIterator[BackgroundModels]:
    async with running_service(settings) as client:
        yield BackgroundModels(client)


def _read(data_dir: Path, read: Callable[[KnowledgeStore], _T]) -> _T:
    with KnowledgeStore(data_dir) as store:
        return read(store)


def _name(path: Path) -> str:
    return cut(printable_line(path.name), _NAME_CELLS)


def _reading(step: FolderRead) -> str:
    return f"reading {_name(Path(step.path))}: {counted(step.progress.n_seen, 'file')}"


def _ended(step: FolderRead) -> str:
    name, progress = _name(Path(step.path)), step.progress
    if step.problem:
        return f"{name}: not read. {printable_line(step.problem)}"
    parts = (
        f"{counted(progress.n_read, 'file')} read",
        f"{progress.n_unchanged:,} as before" if progress.n_unchanged else "",
        f"{progress.n_left_out:,} left out" if progress.n_left_out else "",
        f"{progress.n_gone:,} gone" if progress.n_gone else "",
    )
    return f"{name}: {', '.join(filter(None, parts))}."
