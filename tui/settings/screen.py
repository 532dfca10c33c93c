"""The settings screen: value, source and meaning of each setting, and a way to change it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual import on, work
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import DataTable, Static

from app.common.terminal import printable, printable_line
from app.protocol.plan import PlanRequest
from app.settings.settings import SETTINGS, Settings
from quantizer.system.errors import UserError
from tui.commands import CommandTable, list_command
from tui.settings.controller import SettingRow, SettingsController, ids_with_keys
from tui.settings.themes import theme_choices
from tui.widgets.dialogs import ChoiceDialog, InputDialog
from tui.widgets.screens import FEATURE_CSS, FeatureScreen

_NAME_CELLS, _ORIGIN_CELLS = 15, 11
_LEAST_VALUE_CELLS = 16
_MARGIN = 2
_FACT = "Read-only: derived from the settings above."
_LOAD, _LEAVE = "load", "leave"
_LOADING = {_LOAD: "Reload it now", _LEAVE: "Keep it unchanged until the next start"}


class SettingTable(DataTable[Text]):
    """The settings by name; derived facts at the end have no name."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row", show_cursor=True)
        self._rows: tuple[SettingRow, ...] = ()
        self._requested = ""  # a setting to select when its row is drawn
        self._facts: Mapping[str, str] = {}

    @property
    def setting_name(self) -> str | None:
        if not self.row_count:
            return None
        key = self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value
        return key if key in {row.name for row in self._rows} else None

    def select(self, name: str) -> None:
        self._requested = name
        self._draw()

    def on_resize(self, _: Resize) -> None:
        self._draw()

    def show(self, rows: Sequence[SettingRow], facts: Mapping[str, str]) -> None:
        self._rows, self._facts = tuple(rows), facts
        self._draw()

    def _draw(self) -> None:
        row_index = self.cursor_row
        self.clear(columns=True)
        rest = self.size.width - _NAME_CELLS - 2 * _MARGIN - 1
        has_origin = rest - _ORIGIN_CELLS - _MARGIN >= _LEAST_VALUE_CELLS
        self.add_column(Text("Setting"), width=_NAME_CELLS)
        self.add_column(Text("Value"), width=max(1, rest - (_ORIGIN_CELLS + _MARGIN) * has_origin))
        if has_origin:
            self.add_column(Text("From"), width=_ORIGIN_CELLS)
        for row in self._rows:
            value = row.value
            if row.upcoming is not None:
                value += f" → {row.upcoming}{': L reloads' if row.is_of_load else ' at the next start'}"
            cells = (_cell(row.name), _cell(value), _cell(row.origin))
            self.add_row(*cells[: len(self.columns)], key=row.name)
        for name, text in self._facts.items():
            self.add_row(*(_cell(name), _cell(text), _cell(""))[: len(self.columns)], key=f"fact {name}")
        names = [row.name for row in self._rows]
        if self._requested in names:
            row_index, self._requested = names.index(self._requested), ""
        self.move_cursor(row=row_index)


def _cell(text: str) -> Text:
    return Text(printable_line(text), no_wrap=True, overflow="ellipsis")


SETTINGS_COMMANDS = CommandTable(
    list_command("settings-change", "Change", "e", "Change the setting in the settings file; Enter does the same",
                 "change_setting"),
    list_command("settings-reset", "Reset", "r,delete",
                 "Remove the setting from the settings file: the default applies again", "reset_setting"),
    list_command("settings-load", "Reload", "l",
                 "Reload the model with the saved context, cache and parallel settings", "load_as_written"),
)  # fmt: skip


class SettingsScreen(FeatureScreen):
    """The table of settings, and details of the selected one."""

    CSS_PATH: ClassVar[Any] = [FEATURE_CSS, "settings.tcss"]
    FEATURE = "settings"
    TABLE = SETTINGS_COMMANDS
    BINDINGS = SETTINGS_COMMANDS.bindings()

    def body(self) -> Iterable[Widget]:
        path = printable_line(str(self.settings_controller.path))
        yield Static(f"Telemetry: none. Changes are saved to {path}", markup=False, id="where")
        yield SettingTable()
        yield Static("", markup=False, id="detail")

    def on_mount(self) -> None:
        self.table.focus()

    def on_screen_resume(self) -> None:
        self._draw()

    @property
    def settings_controller(self) -> SettingsController:
        return self.app_context.settings_controller

    @property
    def table(self) -> SettingTable:
        return self.query_one(SettingTable)

    def _draw(self) -> None:
        with self.warn_on_error():
            self.table.show(self.settings_controller.rows(), facts(self.settings_controller.settings))

    @on(DataTable.RowHighlighted)
    def _chosen(self) -> None:
        name = self.table.setting_name
        self.query_one("#detail", Static).update(printable(self.settings_controller.detail(name)) if name else _FACT)

    @on(DataTable.RowSelected)
    def _entered(self) -> None:
        self.change_setting()

    # Command handlers

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
        choices = {choice: choice for choice in SETTINGS[name].choices}
        if name == "theme":
            choices = theme_choices(self.app.available_themes)
        elif isinstance(getattr(Settings(), name), bool):
            choices = {"true": "true", "false": "false"}
        if not choices:
            commands = f" Commands: {', '.join(ids_with_keys())}." if name == "keys" else ""
            explanation = f"{SETTINGS[name].help}{commands}"
            dialog = InputDialog(name, partial(self._write, name), value=text, explanation=explanation)
            await self.app.push_screen_wait(dialog)
            return
        choice = ChoiceDialog(name, f"{SETTINGS[name].help} Now: {text or 'default'}.", choices)
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
        effect = await self.settings_controller.change(name, text)
        self._draw()
        self.inform(f"{name} is {'reset' if text is None else 'saved'}. {effect}")


def describe_reload(load_request: PlanRequest) -> str:
    shift = {None: "", True: "on", False: "off"}[load_request.context_shift]
    values = (load_request.n_ctx, load_request.kv_type, load_request.n_sequences, load_request.n_threads, shift)
    names = ("context", "cache", "parallel", "threads", "context shift")
    text = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True) if value)
    return f"{load_request.model} reloads with {text}. Running answers stop."


def facts(settings: Settings) -> dict[str, str]:
    return {
        "address": settings.connect or settings.url,
        "models": str(settings.models_dir),
        "chats": str(settings.data_dir / "chats.db"),
        "API keys": f"{settings.data_dir / 'keys.json'} (managed with: localllm key)",
        "service log": str(settings.cache_dir / "service.log"),
        "telemetry": "none",
    }
