"""The palette (Ctrl+P): finds commands of every screen, local models, stored chats and settings, in groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from rich.cells import cell_len, set_cell_size
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.fuzzy import Matcher
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker, WorkerCancelled, WorkerFailed

from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import StoreThread
from app.common.terminal import printable_line
from app.connection import local_models
from app.settings.settings import SETTINGS
from quantizer.system.errors import StorageError, UserError
from tui.commands import APP_COMMANDS, FEATURES, Command, Feature
from tui.design.key_names import format_keys
from tui.design.words import cut, cut_at_word
from tui.history.chat_list import ChatQuery, fetch_rows
from tui.key_queue import KEYS_WAIT
from tui.models.rows import format_size
from tui.settings.screen import SettingsScreen
from tui.widgets.screens import CommandScreen

if TYPE_CHECKING:
    from app.protocol.library import LocalModel
    from tui.context import BaseApp


_N_CHATS = 8
_N_RECENT = 5
_PATIENCE_S = 0.3  # for the list of models: without a service the rest is found all the same
_ELSEWHERE = 0.95  # the present screen's commands come before those of others
_FUZZY = 0.3
_CHAT_BY_TITLE, _CHAT_BY_TEXT = 0.6, 0.4
_LEAST_NOTE_CELLS = 16
_MARGIN_CELLS = 3  # the scroll bar, and air
_MATCHED, _TITLE = "bold $text-accent", "$foreground"


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    """A printable title and note, the function to call, and further `words` that find it; `rank` scales its score. The
    entries of one command on several screens have the same `id`."""

    title: str
    note: str
    run: Callable[[], Awaitable[object] | None]
    words: str = ""
    rank: float = 1.0
    group: str = ""
    keys: str = ""
    id: str = ""


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


def matched_letters(title: str, typed: str) -> list[int]:
    """Return the positions in `title` that `typed` matches: as it is, else its words, else its letters in order."""
    lower, wanted = title.casefold(), typed.casefold().strip()
    if len(lower) != len(title) or not wanted:  # folding changed the length: positions would be wrong
        return []
    found = [lower.find(part) for part in ([wanted] if wanted in lower else wanted.split())]
    parts = [wanted] if wanted in lower else wanted.split()
    if all(start >= 0 for start in found):
        return sorted({start + n for start, part in zip(found, parts, strict=True) for n in range(len(part))})
    positions, begin = [], 0
    for letter in wanted.replace(" ", ""):
        begin = lower.find(letter, begin) + 1
        if not begin:
            return []
        positions.append(begin - 1)
    return positions


def grouped(rated: Iterable[tuple[float, PaletteEntry]]) -> list[tuple[str, list[PaletteEntry]]]:
    """Return the entries in their groups, the best first, and the group of the best first."""
    groups: dict[str, list[PaletteEntry]] = {}
    for _, entry in sorted(rated, key=lambda each: -each[0]):
        groups.setdefault(entry.group, []).append(entry)
    return list(groups.items())


def entry_line(entry: PaletteEntry, typed: str, n_title: int, n_keys: int, width: int) -> Content:
    """Return a row of `width` cells: the title with its matched letters, the note where there is room, the keys."""
    n_left = max(1, width - n_keys - 2)
    n_note = n_left - n_title - 2
    is_noted = n_note >= _LEAST_NOTE_CELLS
    shown = cut(entry.title, n_title if is_noted else n_left)
    title = Content.styled(shown, _TITLE)
    for position in matched_letters(entry.title, typed):
        title = title.stylize(_MATCHED, position, position + 1)
    note = set_cell_size(cut_at_word(entry.note, n_note), n_note + 2) if is_noted else ""
    padding = " " * ((n_title + 2 if is_noted else n_left + 2) - cell_len(shown))
    return Content.assemble(title, padding, (note, "$text-muted"), (f"{entry.keys:>{n_keys}}", "$text-accent"))


class PaletteScreen(ModalScreen[None]):
    """A search box and what it finds. Enter runs the highlighted entry; behind words that are still being searched for
    it waits for what they find."""

    CSS_PATH = "palette.tcss"
    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+p", "dismiss(None)", "Close", id="palette-close", tooltip="Go back"),
        Binding("down", "move('cursor_down')", "Next", id="palette-down", tooltip="Select the next entry"),
        Binding("up", "move('cursor_up')", "Previous", id="palette-up", tooltip="Select the previous entry"),
        Binding("pagedown", "move('page_down')", "Next page", id="palette-page-down", tooltip="Go down a page"),
        Binding("pageup", "move('page_up')", "Previous page", id="palette-page-up", tooltip="Go up a page"),
        Binding("ctrl+end", "move('last')", "Last", id="palette-last", tooltip="Go to the last entry"),
        Binding("ctrl+home", "move('first')", "First", id="palette-first", tooltip="Go to the first entry"),
    ]

    def __init__(self, below: CommandScreen, recent: list[PaletteEntry]) -> None:
        """`below` is the screen whose commands come first; what is chosen is put in front of `recent`."""
        super().__init__()
        self._below = below
        self._recent = recent
        self._typed = ""
        self._shown: list[tuple[str, list[PaletteEntry]]] = []
        self._by_id: dict[str, PaletteEntry] = {}
        self._searching: Worker[None] | None = None
        self._models: asyncio.Task[tuple[LocalModel, ...]] | None = None
        self._chats: StoreThread | None = None
        self._everything: asyncio.Task[list[PaletteEntry]] | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="palette"):
            field = Input(placeholder="Search commands, models, chats and settings", compact=True)
            field.cursor_blink = False
            yield field
            found = OptionList(markup=False, compact=True)
            found.can_focus = False
            yield found
            yield Static("", markup=False, id="palette-note")

    def on_mount(self) -> None:
        context = self._app.app_context
        self._everything = asyncio.create_task(self._all_entries())
        self._models = asyncio.create_task(local_models(context.connection))
        if isinstance(context.repository, SqliteChatRepository):
            self._chats = StoreThread(context.settings.data_dir)
        self._search("")

    async def on_unmount(self) -> None:
        for task in (self._models, self._everything):
            if task is not None:
                task.cancel()
        if self._chats is not None:
            await self._chats.close()

    @property
    def _app(self) -> BaseApp:
        return cast("BaseApp", self.app)

    @property
    def _list(self) -> OptionList:
        return self.query_one(OptionList)

    # What is typed

    @on(Input.Changed)
    def _search(self, event: Input.Changed | str) -> None:
        self._typed = event if isinstance(event, str) else event.value.strip()
        self._searching = self._find(self._typed)

    @work(group="search", exclusive=True)
    async def _find(self, typed: str) -> None:
        """Show what is found at once, then also what the store and the service find."""
        if not typed:
            self._show(await self._discovered())
            return
        assert self._everything is not None
        entries = await self._everything
        rated = _rated(entries, typed)
        if rated:
            self._show(grouped(by_words(rated, typed)))
        rated += _rated(await self._model_entries(), typed)
        rated = list(by_words(rated, typed))
        for entry in await self._found_chats(typed):
            rated.append((_CHAT_BY_TITLE if typed.casefold() in entry.title.casefold() else _CHAT_BY_TEXT, entry))
        self._show(grouped(rated))

    def _show(self, groups: Sequence[tuple[str, list[PaletteEntry]]]) -> None:
        self._shown = list(groups)
        self._draw()
        self._list.highlighted = 1 if self._by_id else None  # below the heading of its group

    def _draw(self) -> None:
        width = max(20, self._list.size.width - _MARGIN_CELLS)
        entries = [entry for _, group in self._shown for entry in group]
        n_title = max((cell_len(entry.title) for entry in entries), default=0)
        n_title = min(n_title, max(24, width * 45 // 100))
        n_keys = max((cell_len(entry.keys) for entry in entries), default=0)
        self._by_id = {str(number): entry for number, entry in enumerate(entries)}
        options, number = list[Option](), 0
        for name, group in self._shown:
            options.append(Option(Content.styled(name, "bold $text-muted"), disabled=True))
            for entry in group:
                options.append(Option(entry_line(entry, self._typed, n_title, n_keys, width), id=str(number)))
                number += 1
        if not options:
            options = [Option(Content.styled(f"Nothing is found for {printable_line(self._typed)}.", "$text-muted"),
                              disabled=True)]  # fmt: skip
        at = self._list.highlighted
        self._list.set_options(options)
        self._list.highlighted = at if at is not None and at < len(options) else None

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    @on(OptionList.OptionHighlighted)
    def _show_note(self, event: OptionList.OptionHighlighted) -> None:
        entry = self._by_id.get(event.option_id or "")
        self.query_one("#palette-note", Static).update(entry.note if entry else "", layout=False)

    def action_move(self, how: str) -> None:
        getattr(self._list, f"action_{how}")()

    # What is chosen

    @on(Input.Submitted)
    @work(group=KEYS_WAIT, exclusive=True)
    async def _submitted(self) -> None:
        while self._searching is not None and not self._searching.is_finished:
            with suppress(WorkerFailed, WorkerCancelled):  # the latter where more was typed
                await self._searching.wait()
        option = self._list.highlighted_option
        self._run((option.id or "") if option is not None else "")

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self._run(event.option_id or "")

    def _run(self, entry_id: str) -> None:
        entry = self._by_id.get(entry_id)
        if entry is None:
            return
        self._recent[:] = [entry, *(each for each in self._recent if each.id != entry.id)][:_N_RECENT]
        self.dismiss()
        self.app.call_later(entry.run)

    # Entries

    async def _all_entries(self) -> list[PaletteEntry]:
        await asyncio.to_thread(lambda: [feature.screen_class() for feature in FEATURES])
        settings = (
            PaletteEntry(
                f"Setting: {name}",
                row.help,
                partial(self._show_setting, name),
                name,
                group="Settings",
                id=f"setting:{name}",
            )
            for name, row in SETTINGS.items()
        )
        return [*self._own_commands(), *self._other_commands(), *settings]

    async def _discovered(self) -> list[tuple[str, list[PaletteEntry]]]:
        """Return what is shown before anything is typed: what was chosen last, then the commands of this screen and of
        the app."""
        groups: dict[str, list[PaletteEntry]] = {}
        if self._recent:
            assert self._everything is not None
            # The command as it is run from this screen; a model or a chat is no command.
            by_id = {entry.id: entry for entry in reversed(await self._everything)}
            groups["Recent"] = [replace(by_id.get(each.id, each), group="Recent") for each in self._recent]
        seen = {each.id for each in self._recent}
        for entry in self._own_commands():
            if entry.id not in seen:
                groups.setdefault(entry.group, []).append(entry)
        return list(groups.items())

    def _own_commands(self) -> Iterator[PaletteEntry]:
        screen = self._below
        for command in screen.all_commands():
            if command.is_listed:
                group = "Everywhere" if APP_COMMANDS.find(command.id) else "On this screen"
                run = partial(screen.run_command, command.id)
                keys, entry_id = self._keys(command), f"command:{command.id}"
                yield PaletteEntry(
                    command.title, command.tooltip, run, _words(command), group=group, keys=keys, id=entry_id
                )

    def _other_commands(self) -> Iterator[PaletteEntry]:
        for feature in FEATURES:
            if isinstance(self._below, feature.screen_class()):
                continue
            for command in feature.screen_class().TABLE:
                if command.is_listed:
                    run = partial(self._run_elsewhere, feature, command)
                    yield PaletteEntry(
                        f"{feature.title}: {command.title}",
                        command.tooltip,
                        run,
                        _words(command),
                        _ELSEWHERE,
                        "Other screens",
                        self._keys(command),
                        f"command:{command.id}",
                    )

    def _keys(self, command: Command) -> str:
        return command.key_name(self._app.app_context.settings_controller.keys)

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
                partial(self._below.run_command, "model", model.path),
                printable_line(model.id),
                group="Models",
                id=f"model:{model.path}",
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
                group="Chats",
                id=f"chat:{row.chat.id}",
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


def _rated(entries: Iterable[PaletteEntry], typed: str) -> list[tuple[float, PaletteEntry]]:
    matcher = Matcher(typed)
    rated = ((rate(entry, typed, matcher.match(entry.title)), entry) for entry in entries)
    return [(score, entry) for score, entry in rated if score > 0]


def by_words(rated: Sequence[tuple[float, PaletteEntry]], typed: str) -> Sequence[tuple[float, PaletteEntry]]:
    """Return the entries that have what is typed; only where there are none, those with its letters scattered."""
    return [(score, entry) for score, entry in rated if rate(entry, typed, 0.0) > 0] or rated


def _words(command: Command) -> str:
    return " ".join((command.slash, *command.also, command.id.replace("-", " ")))
