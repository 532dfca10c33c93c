"""The data of the models screen: local, recommended and found models, and running downloads; when each is fetched."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from app.common.terminal import format_bytes
from app.connection import ServiceConnection, is_localllm, localllm_service
from app.library.local.model_files import folder_stamp
from quantizer.system.errors import UserError
from quantizer.system.files import open_regular
from tui.design.words import relative_time
from tui.jobs.monitor import JobMonitor
from tui.models.rows import Section, downloadable_rows, engine_rows, local_rows, with_jobs, with_updates
from tui.models.typed import TITLE, path_section, typed_path

if TYPE_CHECKING:
    from app.protocol.library import HubRepository, LocalModel, LocalModels, ModelUpdate, Recommended
    from app.protocol.status import ModelStatus


DEBOUNCE_S = 0.4  # between the last key and the search
N_REPOSITORIES = 6  # per kind; each costs a header of some megabytes
_FEWEST_LETTERS = 2
_READ_AGAIN_S = 0.5
_COPY_BYTES = 1 << 22
_CHANGES_SHOWN_S = 0.2  # each job reports up to ten times a second


class ModelLists:
    """The lists of one screen. `error` replaces them all. `sleep` waits for a pause in typing."""

    def __init__(
        self,
        connection: ServiceConnection,
        jobs: JobMonitor,
        on_change: Callable[[], object],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        read_uses: Callable[[], Awaitable[Mapping[str, int]]] | None = None,
    ) -> None:
        """`read_uses` returns when models answered last, in milliseconds since 1970."""
        self.words = ""
        self.error: UserError | None = None
        self._connection = connection
        self._on_change = on_change
        self._sleep = sleep
        self._read_uses = read_uses
        self._used: dict[str, str] = {}
        self._local: tuple[LocalModel, ...] = ()
        self._recommended: tuple[Recommended, ...] = ()
        self._found: tuple[HubRepository, ...] = ()
        self._updates: dict[str, ModelUpdate] = {}  # newer revisions of models by their paths, as the hub said
        self._of_engine: tuple[ModelStatus, ...] | None = None  # where the service is an engine of another program
        self._jobs = jobs
        jobs.watch(self._change_soon)
        self._pending_change: asyncio.TimerHandle | None = None
        self._folder = ""
        self._skipped: tuple[str, ...] = ()  # why models of other programs are left out
        self._folder_stamp: tuple[tuple[str, int], ...] = ()
        self._paths = Section(TITLE, ())  # while the words are a path
        self._notes = {"local": "Reading the models …", "catalogue": "Selecting models for this machine …", "hub": ""}

    def sections(self) -> tuple[Section, ...]:
        if self.error is not None:
            return (Section("Models", (), f"{self.error.cause} {self.error.remedy}".strip()),)
        if self._of_engine is not None:
            return (Section("At the connected engine", engine_rows(self._of_engine, self.words)),)
        if self.path:
            others = local_rows(self._local)[1]
            return (self._paths, *((Section("In other programs", others),) if others else ()))
        local, external = local_rows(self._local, self.words, self._used, self._connection.default_model)
        recommended, found = downloadable_rows(self._recommended, self._found, self.words)
        note = self._notes["local"]
        if not note and self.words:
            note = "" if local else "No local model matches."
        elif not note and self._folder:
            home = str(Path("~").expanduser())
            shown = f"~{self._folder.removeprefix(home)}" if self._folder.startswith(f"{home}/") else self._folder
            note = f"{shown}: GGUF files copied here appear at once."
        listed = [Section("Local", local, note)]
        if external or self._skipped:
            listed.append(Section("In other programs", external, " ".join(self._skipped)))
        if recommended or self._notes["catalogue"]:
            listed.append(Section("Recommended for this machine", recommended, self._notes["catalogue"]))
        listed += found
        if self._notes["hub"]:
            listed.append(Section("On the hub", (), self._notes["hub"]))
        seen: set[str] = set()
        sections = []
        for section in listed:  # hubs and disks may list the same model twice
            fresh = with_updates((row for row in section.rows if row.id not in seen), self._updates)
            rows = with_jobs(fresh, self._jobs.jobs.values())
            seen.update(row.id for row in rows)
            sections.append(replace(section, rows=rows))
        return tuple(sections)

    def counts(self) -> str:
        """Return how many models of each kind are here, such as "chat 4 · embedding 1 · elsewhere 3"."""
        local, external = local_rows(self._local)
        kinds = Counter(row.role for row in local if not row.damaged)
        counted = [(kind, kinds[kind]) for kind in ("chat", "embedding", "draft")] + [("elsewhere", len(external))]
        return " · ".join(f"{kind} {n}" for kind, n in counted if n)

    @staticmethod
    def machine_facts(models_dir: Path) -> str:
        """Return the memory of this machine and the free space of the disk with `models_dir`; "" where unknown."""
        import psutil  # a twentieth of a second, and only here

        folder = next(each for each in (models_dir, *models_dir.parents) if each.exists())
        try:
            free = f" · {format_bytes(shutil.disk_usage(folder).free)} of disk free"
        except OSError:
            free = ""
        return f"{psutil.virtual_memory().total / 2**30:.0f} GB memory{free}"

    async def check_updates(self) -> tuple[ModelUpdate, ...]:
        """Ask the hub which models have a newer revision. Raises UserError."""
        found = await (await localllm_service(self._connection)).library.updates()
        self._updates = {update.path: update for update in found if update.state == "newer"}
        self._on_change()
        return found

    def note_fetched(self, reference: str) -> None:
        """Note that the newest revision of `reference` is here."""
        self._updates = {path: each for path, each in self._updates.items() if each.reference != reference}

    async def rename(self, model: str, name: str) -> tuple[str, frozenset[str]]:
        """Give a model of the library another name, and return it with those that it had. Its data stays where it is:
        a link gets the new name, then the old one goes. Raises UserError, also for a loaded model, which keeps its
        name."""
        if not name:
            raise UserError("The name is empty.")
        library = (await localllm_service(self._connection)).library
        await library.removal(model)
        listed = next((each for each in self._local if each.path == model), None)
        if listed is not None and listed.loaded_as:
            raise UserError(f"{listed.id} is loaded.", "Unload it with u, then rename it.")
        new = await library.import_model(model, name)
        await library.remove(model)
        return new, frozenset({model} if listed is None else {model, listed.id})

    async def export(self, model: str, folder: str) -> list[Path]:
        """Copy the files of a model to `folder`, and return the copies. Raises UserError."""
        if not folder:
            raise UserError("The folder is empty.", "Type the path of a folder.")
        paths = [Path(path) for path in (await (await localllm_service(self._connection)).library.removal(model)).paths]
        return await asyncio.to_thread(_copy, paths, folder)

    async def refresh(self, *, is_fresh: bool = False) -> None:
        """Fetch the local models, repeatedly until all are read; `is_fresh` measures the free memory again."""
        try:
            service = await self._connection.service()
            if not is_localllm(service):
                self._of_engine, self.error = (await service.status()).models, None
                self._on_change()
                return
            library = service.library
            listing = await library.models(external=True, fresh=is_fresh)
            if self._read_uses is not None:
                now = datetime.now().astimezone()
                self._used = {
                    name: relative_time(datetime.fromtimestamp(used_ms / 1000, UTC), now)
                    for name, used_ms in (await self._read_uses()).items()
                }
            self._folder = listing.folder
            self._folder_stamp = await self._look()
            self._show_local(listing)
            while not listing.is_complete:
                await asyncio.sleep(_READ_AGAIN_S)
                listing = await library.models(external=True)
                self._show_local(listing)
            self.error = None
        except UserError as error:
            self.error = error
        self._on_change()

    async def recommend(self) -> None:
        try:
            found = await (await localllm_service(self._connection)).library.recommend()
            self._recommended = found.models
            self._notes["catalogue"] = found.notice
        except UserError as error:
            self._notes["catalogue"] = str(error)
        self._on_change()

    async def has_changed(self) -> bool:
        is_growing = any(model.is_arriving for model in self._local)
        return is_growing or (bool(self._folder) and await self._look() != self._folder_stamp)

    async def _look(self) -> tuple[tuple[str, int], ...]:
        return await asyncio.to_thread(folder_stamp, Path(self._folder)) if self._folder else ()

    def holds(self, path: str) -> bool:
        return bool(self._folder) and Path(path).is_relative_to(self._folder)

    @property
    def path(self) -> str:
        """The path that the search text is; "" for words. It is never sent to the hub."""
        return typed_path(self.words) if self._of_engine is None else ""

    def narrow(self, words: str) -> None:
        self.words = words.strip()
        self._found = ()
        self._paths = Section(TITLE, (), "Looking …")
        self._notes["hub"] = "Searching …" if self.can_search_hub else ""
        self._on_change()

    @property
    def can_search_hub(self) -> bool:
        """Whether the hub is to be searched: not for an engine of another program, a path, nor too short a text."""
        return self._of_engine is None and len(self.words) >= _FEWEST_LETTERS and not self.path

    async def search(self) -> None:
        """Search the hub after a pause in typing; of a path show the files."""
        if path := self.path:
            self._paths = await asyncio.to_thread(path_section, path)
            self._on_change()
        if not self.can_search_hub:
            return
        await self._sleep(DEBOUNCE_S)
        try:
            self._found = await (await localllm_service(self._connection)).library.search(self.words, N_REPOSITORIES)
            self._notes["hub"] = "" if self._found else "No match on the hub."
        except UserError as error:
            self._notes["hub"] = str(error)
        self._on_change()

    def _change_soon(self) -> None:
        def change() -> None:
            self._pending_change = None
            self._on_change()

        if self._pending_change is None:
            self._pending_change = asyncio.get_running_loop().call_later(_CHANGES_SHOWN_S, change)

    def _show_local(self, listing: LocalModels) -> None:
        self._local, self._skipped = listing.models, listing.skipped
        self._notes["local"] = ""
        self._on_change()


def _copy(paths: Sequence[Path], place: str) -> list[Path]:
    """Copy files to the folder `place`, none over another one. What was copied of them goes if one fails."""
    folder = Path(place).expanduser().absolute()
    copied: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        n_bytes = sum(path.stat().st_size for path in paths)
        if (n_free := shutil.disk_usage(folder).free) < n_bytes:
            raise UserError(
                f"{folder} has {format_bytes(n_free)} free, the model takes {format_bytes(n_bytes)}.",
                "Name a folder on another disk.",
            )
        for path in paths:
            with open_regular(path) as source, (folder / path.name).open("xb") as target:
                copied.append(folder / path.name)
                shutil.copyfileobj(source, target, _COPY_BYTES)
    except FileExistsError as error:
        _remove(copied)
        raise UserError(f"{error.filename} exists.", "Name another folder.") from error
    except OSError as error:
        _remove(copied)
        raise UserError(f"The model cannot be copied to {folder}: {error.strerror or error}.") from error
    return copied


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
