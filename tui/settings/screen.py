"""The settings screen: sections, the value of each setting, what is chosen where it is automatic, and a way to change
it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from rich.cells import cell_len, set_cell_size
from textual import on, work
from textual.content import Content
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.common.terminal import printable, printable_line
from app.options.option import Section
from app.protocol.plan import PlanRequest
from app.protocol.status import ModelStatus
from app.settings.settings import SETTINGS, Settings, SettingSource
from quantizer.system.errors import UserError
from tui.commands import CommandTable, list_command
from tui.context import AppContext
from tui.design.header import ScreenHeader
from tui.design.search_box import SearchBox
from tui.settings.controller import SettingRow, SettingsController, ids_with_keys
from tui.settings.themes import theme_choices
from tui.widgets.dialogs import ChoiceDialog, InputDialog
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

_TITLE_CELLS, _ORIGIN_CELLS = 29, 12
_NARROW_CELLS, _LEAST_TITLE_CELLS = 60, 18  # a screen this narrow has no column of sources
_INDENT = "   "
_FACT_ID = "fact "
_FACT = "Read-only: derived from the settings above."
_NONE_FOUND = "No setting matches. Esc clears the search."
_LOAD, _LEAVE = "load", "leave"
_LOADING = {_LOAD: "Reload it now", _LEAVE: "Keep it unchanged until the next start"}


class SettingList(OptionList):
    """The settings by section; derived facts at the end of the last one have no name."""

    def __init__(self) -> None:
        super().__init__(markup=False, compact=True)
        self._rows: tuple[SettingRow, ...] = ()
        self._facts: Mapping[str, str] = {}
        self._chosen: Mapping[str, str] = {}
        self._wanted = ""
        self._requested = ""  # a setting to select when its row is drawn

    @property
    def setting_name(self) -> str | None:
        option = self.highlighted_option
        return option.id if option is not None and option.id in SETTINGS else None

    def select(self, name: str) -> None:
        self._requested, self._wanted = name, ""
        self.screen.query_one(SearchBox).value = ""
        self._draw()

    def on_resize(self, _: Resize) -> None:
        self._draw()

    def show(self, rows: Sequence[SettingRow], facts: Mapping[str, str], chosen: Mapping[str, str]) -> None:
        """Show the rows; `chosen` are the values in effect of settings that are automatic."""
        self._rows, self._facts, self._chosen = tuple(rows), facts, chosen
        self._draw()

    def narrow(self, text: str) -> None:
        """Show only the settings with each word of `text` in their title, name, section or explanation."""
        self._wanted = text
        self._draw()

    def _draw(self) -> None:
        kept = self._requested or (self.highlighted_option.id if self.highlighted_option else None)
        options: list[Option] = []
        for section in Section:
            rows = [row for row in self._rows if row.option.shown_section is section and self._matches(row)]
            found = [Option(self._line(row), row.name) for row in rows]
            if section is Section.PRIVACY:
                found += [
                    Option(self._fact(name, text), f"{_FACT_ID}{name}")
                    for name, text in self._facts.items()
                    if self._has_words(f"{name} {text}")
                ]
            if found:
                options += [Option(Content(), disabled=True)] if options else []
                options += [Option(Content.styled(str(section), "bold $text-accent"), disabled=True), *found]
        with self.prevent(OptionList.OptionHighlighted):
            self.clear_options()
            self.add_options(options or [Option(Content.styled(_NONE_FOUND, "$text-muted"), disabled=True)])
        names = [option.id for option in options]
        if kept is not None and kept in names:
            self.highlighted = names.index(kept)
            self._requested = ""
        else:
            self.highlighted = next((at for at, option in enumerate(options) if not option.disabled), None)

    def _matches(self, row: SettingRow) -> bool:
        option = row.option
        return self._has_words(f"{option.shown_title} {row.name} {option.shown_section} {option.help} {row.value}")

    def _has_words(self, text: str) -> bool:
        return all(word in text.casefold() for word in self._wanted.casefold().split())

    def _line(self, row: SettingRow) -> Content:
        is_changed = row.origin is not SettingSource.DEFAULT
        value = Content.styled(printable_line(row.value), "bold $bright" if is_changed else "$foreground")
        chosen = self._chosen.get(row.name)
        if chosen and row.value == row.option.unset and row.upcoming is None:
            value += Content.styled(f" ({printable_line(chosen)})", "$text-muted")
        if row.upcoming is not None:
            when = "L reloads" if row.is_of_load else "at the next start"
            value += Content.styled(f"  → {printable_line(row.upcoming)}: {when}", "$text-warning")
        elif is_changed and row.default:
            value += Content.styled(f"  default {printable_line(row.default)}", "$text-muted")
        return self._row(row.option.shown_title, value, str(row.origin) if is_changed else "")

    def _fact(self, name: str, text: str) -> Content:
        return self._row(name, Content.styled(printable_line(text), "$text-muted"), "")

    def _row(self, title: str, value: Content, origin: str) -> Content:
        n_cells = self.scrollable_content_region.width
        is_narrow = n_cells < _NARROW_CELLS
        n_title = max(n_cells * 2 // 5, _LEAST_TITLE_CELLS) if is_narrow else _TITLE_CELLS
        n_value = max(n_cells - len(_INDENT) - n_title - (0 if is_narrow else _ORIGIN_CELLS) - 1, 1)
        shown = title if cell_len(title) < n_title else f"{set_cell_size(title, n_title - 2)}…"
        head = Content.assemble(_INDENT, (set_cell_size(shown, n_title), "$foreground"))
        cut = value if value.cell_length <= n_value else value.truncate(n_value, ellipsis=True)
        gap = " " * (n_value - cut.cell_length + 1)
        return head + cut + Content.assemble(gap, ("" if is_narrow else origin, "$text-muted"))


SETTINGS_COMMANDS = CommandTable(
    list_command("settings-change", "Change", "e", "Change the setting in the settings file; Enter does the same",
                 "change_setting"),
    list_command("settings-reset", "Reset", "r,delete",
                 "Remove the setting from the settings file: the default applies again", "reset_setting"),
    list_command("settings-search", "Search", "slash", "Search the settings", "search"),
    list_command("settings-load", "Reload", "l",
                 "Reload the model with the saved context, cache and parallel settings", "load_as_written"),
)  # fmt: skip


class SettingsScreen(FeatureScreen):
    """The list of settings, a search, and the sentence that explains the selected one."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "settings.tcss"]
    FEATURE = "settings"
    TABLE = SETTINGS_COMMANDS
    KEYS = SearchBox.KEYS
    BINDINGS = SETTINGS_COMMANDS.bindings()
    VERTICAL_BREAKPOINTS = [(0, "-short"), (20, "-tall")]  # noqa: RUF012 - Textual declares no class variable

    def __init__(self, app_context: AppContext) -> None:
        super().__init__(app_context)
        self._chosen_values: Mapping[str, str] = {}

    def body(self) -> Iterable[Widget]:
        yield SearchBox("search settings")
        yield SettingList()
        yield Static("", markup=False, classes="row-about", id="meaning")
        yield Static("", markup=False, classes="row-about", id="effect")

    def on_mount(self) -> None:
        self.table.focus()

    def on_screen_resume(self) -> None:
        self._draw()
        self._look_what_is_chosen()

    def show_facts(self, header: ScreenHeader) -> None:
        header.show_facts(f"Telemetry: none · saved in {printable_line(str(self.settings_controller.path))}")

    @property
    def settings_controller(self) -> SettingsController:
        return self.app_context.settings_controller

    @property
    def table(self) -> SettingList:
        return self.query_one(SettingList)

    def _draw(self, chosen: Mapping[str, str] | None = None) -> None:
        """Show the settings; `chosen` are the values in effect of automatic ones, None those of the last look."""
        with self.warn_on_error():
            if chosen is not None:
                self._chosen_values = chosen
            found = {**self._chosen_values, "theme": self.app.theme}
            self.table.show(self.settings_controller.rows(), facts(self.settings_controller.settings), found)

    @work(group="look", exclusive=True)
    async def _look_what_is_chosen(self) -> None:
        try:
            status = await (await self.service()).status()
        except UserError:  # the values of the file are shown without a service too
            return
        model = status.model(self.app_context.connection.state.model)
        if model is not None:
            self._draw(chosen_values(model))

    @on(OptionList.OptionHighlighted)
    def _chosen(self) -> None:
        name = self.table.setting_name
        meaning, effect = (_FACT, "") if name is None else self.settings_controller.detail(name)
        self.query_one("#meaning", Static).update(printable(meaning))
        self.query_one("#effect", Static).update(printable(effect))

    @on(OptionList.OptionSelected)
    def _entered(self) -> None:
        self.change_setting()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self.table.narrow(event.value)

    @on(SearchBox.Left)
    def _left_search(self) -> None:
        self.table.focus()

    # Command handlers

    def search(self) -> None:
        self.query_one(SearchBox).focus()

    @work(exclusive=True)
    async def change_setting(self) -> None:
        name = self.table.setting_name
        if name is None:
            self.inform(_FACT)
            return
        try:
            text = self.settings_controller.text(name)
        except UserError as error:
            self.warn(str(error))
            return
        title = SETTINGS[name].shown_title
        choices = {choice: choice for choice in SETTINGS[name].choices}
        if name == "theme":
            choices = theme_choices(self.app.available_themes)
        elif isinstance(getattr(Settings(), name), bool):
            choices = {"true": "on", "false": "off"}
        if not choices:
            commands = f" Commands: {', '.join(ids_with_keys())}." if name == "keys" else ""
            explanation = f"{SETTINGS[name].help}{commands}"
            dialog = InputDialog(title, partial(self._write, name), value=text, explanation=explanation)
            await self.app.push_screen_wait(dialog)
            return
        now = choices.get(text, text) or "the default"
        choice = ChoiceDialog(title, f"{SETTINGS[name].help} Now: {now}.", choices)
        if (chosen := await self.app.push_screen_wait(choice)) is not None:
            with self.warn_on_error():
                await self._write(name, chosen)

    async def reset_setting(self) -> None:
        name = self.table.setting_name
        if name is None:
            self.inform(_FACT)
        else:
            with self.warn_on_error():
                await self._write(name, None)

    @work(exclusive=True)
    async def load_as_written(self) -> None:
        connection = self.app_context.connection
        with self.warn_on_error():
            load_request = self.settings_controller.load_request(connection.state.model)
            if load_request is None:
                self.inform("The model already uses the saved settings.")
                return
            dialog = ChoiceDialog("Reload", describe_reload(load_request), _LOADING)
            if await self.app.push_screen_wait(dialog) == _LOAD:
                model_id = await (await self.service()).reload(load_request)
                await connection.use_model(model_id)
                self.inform("Loading: Esc returns to the chat.")

    async def _write(self, name: str, text: str | None) -> None:
        changed = await self.settings_controller.change(name, text)
        self._draw()
        self._chosen()
        self.inform(changed)


def describe_reload(load_request: PlanRequest) -> str:
    shift = {None: "", True: "on", False: "off"}[load_request.context_shift]
    values = (load_request.n_ctx, load_request.kv_type, load_request.n_sequences, load_request.n_threads, shift)
    names = ("context", "cache", "parallel", "threads", "context shift")
    text = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True) if value)
    return f"{load_request.model} reloads with {text}. Running answers stop."


def chosen_values(model: ModelStatus) -> dict[str, str]:
    """Return what a loaded model runs with where its settings are automatic."""
    found = {"ctx": f"{model.n_ctx:,}" if model.n_ctx else ""}
    if model.plan is not None:
        found["kv_type"] = model.plan.setting.kv_type
    if model.threads is not None:
        found["threads"] = str(model.threads.n_most)
    found |= {each.name: each.value for each in model.settings if each.name in ("threads", "draft")}
    return {name: text for name, text in found.items() if text}


def facts(settings: Settings) -> dict[str, str]:
    return {
        "Telemetry": "none",
        "Address in use": settings.connect or settings.url,
        "Models": str(settings.models_dir),
        "Chats": str(settings.data_dir / "chats.db"),
        "API keys": f"{settings.data_dir / 'keys.json'} (managed with: localllm key)",
        "Service log": str(settings.cache_dir / "service.log"),
    }
