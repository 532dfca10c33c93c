"""The palette (Ctrl+P): finds commands of every screen, local models, stored chats and settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape
from textual.style import Style

from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import StoreThread
from app.common.terminal import printable_line
from app.settings.settings import SETTINGS
from quantizer.system.errors import StorageError, UserError
from tui.commands import FEATURES, Command, Feature
from tui.design.key_names import format_keys
from tui.history.chat_list import ChatQuery, fetch_rows
from tui.models.rows import format_size
from tui.models.typed import local_models
from tui.settings.screen import SettingsScreen
from tui.widgets.screens import CommandScreen

if TYPE_CHECKING:
    from app.protocol.library import LocalModel
    from tui.context import BaseApp


_N_CHATS = 8
_PATIENCE_S = 0.3  # for the list of models: without a service the rest is found all the same
_ELSEWHERE = 0.95  # the present screen's commands come before those of others
_FUZZY = 0.3
_CHAT_BY_TITLE, _CHAT_BY_TEXT = 0.6, 0.4


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    """A printable title and note, the function to call, and further `words` that find it; `rank` scales its score."""

    title: str
    note: str
    run: Callable[[], Awaitable[None] | None]
    words: str = ""
    rank: float = 1.0


def rate(entry: PaletteEntry, typed: str, fuzzy: float) -> float:
    """Return how well `entry` fits, from 0 (not at all) to 1; `fuzzy` is the score of its letters in order."""
    wanted, title = typed.casefold().strip(), entry.title.casefold()
    others = f"{entry.words} {entry.note}".casefold()
    if not wanted:
        return 0.0
    ranks = (
        (1.0, title.startswith(wanted)),
        (0.9, f" {wanted}" in title),
        (0.8, any(word.startswith(wanted) for word in entry.words.casefold().split())),
        (0.7, wanted in title),
        (0.5, all(part in f"{title} {others}" for part in wanted.split())),
    )
    score = next((score for score, fits in ranks if fits), _FUZZY * min(1.0, fuzzy))
    return score * entry.rank


class PaletteProvider(Provider):
    """Everything that the palette finds from a `CommandScreen`; nothing in a dialog."""

    async def startup(self) -> None:
        self._entries: list[PaletteEntry] = []
        self._models: asyncio.Task[tuple[LocalModel, ...]] | None = None
        self._chats: StoreThread | None = None
        if not isinstance(self.screen, CommandScreen):
            return
        context = self._app.app_context
        await asyncio.to_thread(lambda: [feature.screen_class() for feature in FEATURES])
        self._entries = [
            *self._own_commands(),
            *self._other_commands(),
            *(
                PaletteEntry(f"Setting: {name}", row.help, partial(self._show_setting, name), name)
                for name, row in SETTINGS.items()
            ),
        ]
        self._models = asyncio.create_task(local_models(context.connection))
        if isinstance(context.repository, SqliteChatRepository):
            self._chats = StoreThread(context.settings.data_dir)

    async def shutdown(self) -> None:
        if self._models is not None:
            self._models.cancel()
        if self._chats is not None:
            await self._chats.close()

    async def discover(self) -> Hits:
        for entry in sorted(self._own_commands(), key=lambda entry: entry.title):
            yield DiscoveryHit(escape(entry.title), entry.run, entry.title, escape(entry.note))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for entry in (*self._entries, *await self._model_entries()):
            if (score := rate(entry, query, matcher.match(entry.title))) > 0:
                yield self._hit(score, entry, query)
        for entry in await self._found_chats(query):
            is_named = query.casefold() in entry.title.casefold()
            yield self._hit(_CHAT_BY_TITLE if is_named else _CHAT_BY_TEXT, entry, query)

    # Entries

    @property
    def _app(self) -> BaseApp:
        return cast("BaseApp", self.app)

    def _own_commands(self) -> Iterator[PaletteEntry]:
        screen = self.screen
        if isinstance(screen, CommandScreen):
            for command in screen.all_commands():
                if command.is_listed:
                    run = partial(screen.run_command, command.id)
                    yield PaletteEntry(command.title, command.tooltip, run, _words(command))

    def _other_commands(self) -> Iterator[PaletteEntry]:
        for feature in FEATURES:
            if not isinstance(self.screen, feature.screen_class()):
                for command in feature.screen_class().TABLE:
                    if command.is_listed:
                        run = partial(self._run_elsewhere, feature, command)
                        title = f"{feature.title}: {command.title}"
                        yield PaletteEntry(title, command.tooltip, run, _words(command), _ELSEWHERE)

    async def _model_entries(self) -> list[PaletteEntry]:
        models: tuple[LocalModel, ...] = ()
        if self._models is not None:
            done, _ = await asyncio.wait({self._models}, timeout=_PATIENCE_S)
            with suppress(UserError):  # a service that does not answer is reported by the chat
                models = self._models.result() if done else ()
        return [
            PaletteEntry(
                printable_line(f"Chat with {model.id}"),
                printable_line(f"{format_size(model.n_bytes)} {model.file_type} · {model.where}"),
                partial(self._app.choose_model, model.path),
                printable_line(model.id),
            )
            for model in models
        ]

    async def _found_chats(self, typed: str) -> list[PaletteEntry]:
        if self._chats is None:
            return []
        try:
            rows = await fetch_rows(self._chats, ChatQuery(typed=typed), _N_CHATS)
        except StorageError:  # F5 reports it
            return []
        return [
            PaletteEntry(
                printable_line(f"Open: {row.chat.title}"),
                "A stored chat",
                partial(self._app.open_chat, row.chat.id, row.message_id),
            )
            for row in rows
        ]

    # What is not on this screen

    async def _run_elsewhere(self, feature: Feature, command: Command) -> None:
        """Show the feature and run its command; one for a row only names its key, since no row was chosen yet."""
        await self._app.go_to(feature.id)
        screen = self._app.screen
        if not isinstance(screen, CommandScreen):
            return  # a dialog of that feature is open
        if command.has_priority or not command.keys:
            await screen.run_command(command.id)
        else:
            keys = format_keys(command.bound_keys(self._app.app_context.settings_controller.keys))
            screen.inform(f"{keys}: {command.title.lower()} what is selected.")

    async def _show_setting(self, name: str) -> None:
        await self._app.go_to("settings")
        if isinstance(self._app.screen, SettingsScreen):
            self._app.screen.table.select(name)

    def _hit(self, score: float, entry: PaletteEntry, typed: str) -> Hit:
        shown = Content(entry.title)
        start = entry.title.casefold().find(typed.casefold().strip())
        if start >= 0:
            shown = shown.stylize(self.match_style or Style(bold=True), start, start + len(typed.strip()))
        return Hit(score, shown, entry.run, entry.title, escape(entry.note))


def _words(command: Command) -> str:
    return " ".join((command.slash, *command.also, command.id.replace("-", " ")))
