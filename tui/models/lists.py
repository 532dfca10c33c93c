"""What the models screen shows, fetched and kept up: models here, recommended ones, those found, jobs under way.

Owns these values and when they are fetched. Knows nothing of widgets: `on_change` is called after each change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from quantizer.errors import UserError
from tui.connection import ServiceConnection
from tui.jobs.monitor import JobMonitor
from tui.models.rows import ModelRow, Section, downloadable_rows, local_rows, with_jobs
from tui.own_service import own_service

if TYPE_CHECKING:
    from app.client import HubRepository, LocalModel, Recommended

__all__ = ["DEBOUNCE_S", "N_REPOSITORIES", "ModelLists"]

DEBOUNCE_S = 0.4  # after the last key, before the hub is asked
N_REPOSITORIES = 6  # of each kind; of each a header of some megabytes is read
_FEWEST_LETTERS = 2
_READ_AGAIN_S = 0.5
_CHANGES_SHOWN_S = 0.2  # jobs tell up to ten times a second each


class ModelLists:
    """The lists behind one screen. `error` is what stands in the way of them all."""

    def __init__(self, connection: ServiceConnection, jobs: JobMonitor, on_change: Callable[[], None]) -> None:
        self.words = ""
        self.error: UserError | None = None
        self._connection = connection
        self._on_change = on_change
        self._here: tuple[LocalModel, ...] = ()
        self._recommended: tuple[Recommended, ...] = ()
        self._found: tuple[HubRepository, ...] = ()
        self._jobs = jobs
        jobs.watch(self._show_soon)
        self._showing: asyncio.TimerHandle | None = None
        self._notes = {"here": "Looking …", "catalogue": "Choosing for this machine …", "hub": ""}

    def sections(self) -> tuple[Section, ...]:
        """Return what there is to see, in order: nothing but the error where one stands in the way."""
        if self.error is not None:
            return (Section("Models", (), f"{self.error.cause} {self.error.remedy}".strip()),)
        here, elsewhere = local_rows(self._here, self.words)
        offers, found = downloadable_rows(self._recommended, self._found, self.words)
        nothing = "Nothing here has that name." if self.words and not here else ""
        listed = [Section("Here", here, self._notes["here"] or nothing)]
        if elsewhere:
            listed.append(Section("Elsewhere on this disk", elsewhere))
        if offers or self._notes["catalogue"]:
            listed.append(Section("Recommended for this machine", offers, self._notes["catalogue"]))
        listed += found
        if self._notes["hub"]:
            listed.append(Section("On the hub", (), self._notes["hub"]))
        seen: set[str] = set()
        return tuple(
            Section(section.title, with_jobs(_unseen(section.rows, seen), self._jobs.jobs.values()), section.note)
            for section in listed
        )

    def row(self, row_id: str) -> ModelRow | None:
        """Return the row of this id, as it is now."""
        return next((row for section in self.sections() for row in section.rows if row.id == row_id), None)

    async def refresh(self, *, is_fresh: bool = False) -> None:
        """Fetch what is here, again until all of it is read; `is_fresh` looks at the machine's memory anew."""
        try:
            library = (await own_service(self._connection)).library
            shelf = await library.models(elsewhere=True, fresh=is_fresh)
            self._show_here(shelf.models)
            while not shelf.is_complete:
                await asyncio.sleep(_READ_AGAIN_S)
                shelf = await library.models(elsewhere=True)
                self._show_here(shelf.models)
            self.error = None
        except UserError as error:
            self.error = error
        self._on_change()

    async def recommend(self) -> None:
        """Fetch what suits this machine."""
        try:
            self._recommended = await (await own_service(self._connection)).library.recommend()
            self._notes["catalogue"] = ""
        except UserError as error:
            self._notes["catalogue"] = str(error)
        self._on_change()

    def narrow(self, words: str) -> None:
        """Show only what has all `words` in its name."""
        self.words = words.strip()
        self._found = ()
        self._notes["hub"] = "Searching …" if self.asks_the_hub else ""
        self._on_change()

    @property
    def asks_the_hub(self) -> bool:
        """Whether there are words enough to search the hub for."""
        return len(self.words) >= _FEWEST_LETTERS

    async def search(self) -> None:
        """Search the hub for the words, once nobody has typed for a moment."""
        if not self.asks_the_hub:
            return
        await asyncio.sleep(DEBOUNCE_S)
        try:
            self._found = await (await own_service(self._connection)).library.search(self.words, N_REPOSITORIES)
            self._notes["hub"] = "" if self._found else "The hub has nothing of that name."
        except UserError as error:
            self._notes["hub"] = str(error)
        self._on_change()

    def _show_soon(self) -> None:
        """Let what comes in the next moment be shown together."""
        if self._showing is None:
            self._showing = asyncio.get_running_loop().call_later(_CHANGES_SHOWN_S, self._show_jobs)

    def _show_jobs(self) -> None:
        self._showing = None
        self._on_change()

    def _show_here(self, models: tuple[LocalModel, ...]) -> None:
        self._here = models
        self._notes["here"] = ""
        self._on_change()


def _unseen(rows: Iterable[ModelRow], seen: set[str]) -> Iterator[ModelRow]:
    """Yield each row once: hubs and disks may name the same thing twice."""
    for row in rows:
        if row.id not in seen:
            seen.add(row.id)
            yield row
