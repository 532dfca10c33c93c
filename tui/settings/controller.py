"""The settings in effect, those of the settings file for the next start, which changes apply at once, and the check of
custom keys such as `quit = "ctrl+x,f12"`. Values and sources belong to `app.settings`."""

from __future__ import annotations

import asyncio
import os
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from textual.keys import Keys

from app.options.option import Effect, Option, format_value
from app.settings.settings import (
    SETTINGS,
    Settings,
    SettingSource,
    environment_variable,
    load_settings,
    parse_setting,
    setting_sources,
    settings_file,
    write_setting,
)
from quantizer.system.errors import UsageError
from tui.commands import APP_COMMANDS, FEATURES, Command

if TYPE_CHECKING:
    from app.protocol.plan import PlanRequest

_HIDDEN = "(hidden)"
_EFFECTS = {
    Effect.AT_ONCE: "It is effective now.",
    Effect.AT_LOAD: "L reloads the model with it; otherwise it takes effect at the next start.",
    Effect.AT_START: "It takes effect at the next start of app and service.",
}
# Settings that a running service can load a model with. Others need a restart: those of the memory plan (gpu, rpc) and
# of auxiliary files (draft, lora, control_vector).
_LOADED_WITH = {name: row.plan_field for name, row in SETTINGS.items() if row.plan_field}

_SOURCES = {
    SettingSource.DEFAULT: "This is the default.",
    SettingSource.FILE: "Set in the settings file.",
    SettingSource.ENVIRONMENT: "Set by {variable} in the environment.",
    SettingSource.FLAG: "Set by {flag} on the command line.",
}

_FIXED = {"ctrl+q": "quit", "ctrl+p": ""}  # Textual's own precede all others
_YIELDING = {"interrupt", "suspend"}  # any command may take their keys, as quit and undo do
_KNOWN = {key.value for key in Keys}
_MODIFIERS = {"ctrl", "alt", "shift", "super", "hyper", "meta"}


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A row of the settings list; `upcoming` is a different value for the next start, and `is_of_load` marks one that a
    model can be loaded with before. `default` is empty where the value is the default."""

    name: str
    value: str
    upcoming: str | None
    origin: SettingSource
    is_of_load: bool = False
    default: str = ""

    @property
    def option(self) -> Option:
        return SETTINGS[self.name]


class SettingsController:
    """`settings` are in effect; `flags` and `environment` are their sources besides the file."""

    def __init__(
        self, settings: Settings, flags: Mapping[str, object] | None = None, environment: Mapping[str, str] = os.environ
    ) -> None:
        self.path = settings_file(environment)
        self.settings = settings
        self._flags = flags or {}
        self._environment = environment
        self._on_change: dict[str, Callable[[], None]] = {}

    @property
    def keys(self) -> Mapping[str, str]:
        return self.settings.keys

    def is_flag(self, name: str) -> bool:
        return bool(self._flags.get(name))

    def on_change(self, name: str, callback: Callable[[], None]) -> None:
        """Call `callback` after every change of the setting, also of one that takes effect later."""
        self._on_change[name] = callback

    def drop_keys(self) -> None:
        self.settings = replace(self.settings, keys={})

    def rows(self) -> tuple[SettingRow, ...]:
        """Return every setting in the order of the descriptions. Raises UsageError for an invalid file."""
        upcoming = load_settings(self._flags, self._environment)
        origins = setting_sources(self._flags, self._environment)
        rows = []
        for name, option in SETTINGS.items():
            now, then = getattr(self.settings, name), getattr(upcoming, name)
            changes = now != then and option.effect is not Effect.AT_ONCE
            is_of_load = changes and name in _LOADED_WITH and _is_explicit(then)
            rows.append(
                SettingRow(
                    name,
                    shown(name, now),
                    shown(name, then) if changes else None,
                    origins[name],
                    is_of_load,
                    ""
                    if now == option.default or option.default is None
                    else option.default_text or shown(name, option.default),
                )
            )
        return tuple(rows)

    def load_request(self, model: str) -> PlanRequest | None:
        """Return the request to load `model` with the saved settings; None if it already matches or only a restart can
        apply them: 0 and "" mean automatic and cannot be requested. Raises UsageError for an invalid file."""
        from app.protocol.plan import PlanRequest  # as for all below: the first frame does without

        upcoming = load_settings(self._flags, self._environment)
        wanted: dict[str, Any] = {
            field: getattr(upcoming, name)
            for name, field in _LOADED_WITH.items()
            if _is_explicit(getattr(upcoming, name)) and getattr(upcoming, name) != getattr(self.settings, name)
        }
        return PlanRequest(model=model, **wanted) if wanted else None

    def text(self, name: str) -> str:
        """Return the saved value as editable text; "" for a secret."""
        if SETTINGS[name].is_secret:
            return ""
        return format_value(getattr(load_settings(self._flags, self._environment), name))

    async def change(self, name: str, text: str | None) -> str:
        """Write `text` to the settings file, or remove the setting if None; return its title, its value and when that
        takes effect, in the words of every screen. Raises UserError for an invalid value or an unwritable file."""
        value: Any = None if text is None else parse_setting(name, text)
        if name == "keys" and text is not None:
            check_keys(value)
        await asyncio.to_thread(write_setting, self.path, name, value)
        saved: Any = getattr(load_settings(self._flags, self._environment), name)
        if SETTINGS[name].effect is Effect.AT_ONCE:
            self.settings = replace(self.settings, **{name: saved})
        if obey := self._on_change.get(name):  # settings that are read on use need no call
            obey()
        effect = _EFFECTS[SETTINGS[name].effect]
        match setting_sources(self._flags, self._environment)[name]:
            case SettingSource.ENVIRONMENT:
                effect = f"{environment_variable(name)} in the environment overrides the settings file."
            case SettingSource.FLAG:
                effect = "The command line overrides the settings file."
        return f"{SETTINGS[name].shown_title}: {shown(name, saved)}. {effect}"

    def detail(self, name: str) -> tuple[str, str]:
        """Return the sentence that explains a setting, and how else it is set and when it takes effect."""
        row = SETTINGS[name]
        choices = f" One of {', '.join(row.choices)}." if row.choices else ""
        source = setting_sources(self._flags, self._environment)[name]
        where = _SOURCES[source].format(variable=environment_variable(name), flag=row.flag)
        others = f"In the file: {name}. Variable: {environment_variable(name)}."
        return f"{row.help}{choices}", f"{others} {where} {row.effect.value}."


def _is_explicit(value: object) -> bool:
    return isinstance(value, bool) or bool(value)


def shown(name: str, value: object) -> str:
    """Return a value in people's words: on and off, and what 0 or nothing stands for."""
    row = SETTINGS[name]
    if isinstance(value, bool):
        return "on" if value else "off"
    if row.unset and not value:
        return row.unset
    text = format_value(value)
    return _HIDDEN if text and row.is_secret else text or "–"


def check_keys(keys: Mapping[str, str]) -> None:
    """Raise UsageError for an unknown command, an invalid key, a key that would block typing, and two commands of one
    screen with the same key. Imports every screen."""
    tables = _tables()
    commands = _with_keys(tables)
    for command_id, names in keys.items():
        if command_id not in commands:
            raise UsageError(f"{command_id!r} is not a command with a key.", "F10 lists these commands, under keys.")
        for name in names.split(","):
            _check_key(name, commands[command_id])
    for title, table in tables.items():
        owners: dict[str, str] = {}
        for command in table:
            if command.id in _YIELDING and command.id not in keys:
                continue
            for name in filter(None, command.bound_keys(keys).split(",")):
                if (other := owners.setdefault(name, command.id)) != command.id:
                    problem = f"{name} is assigned to both {other} and {command.id} in {title}."
                    raise UsageError(problem, "Change one of them.")


def ids_with_keys() -> list[str]:
    """Return the sorted ids of the commands that can have custom keys. Imports every screen."""
    return sorted(_with_keys(_tables()))


def _tables() -> dict[str, tuple[Command, ...]]:
    return {place.title: (*place.screen_class().TABLE, *APP_COMMANDS) for place in FEATURES}


def _with_keys(tables: Mapping[str, tuple[Command, ...]]) -> dict[str, Command]:
    return {command.id: command for table in tables.values() for command in table if command.keys}


def _check_key(name: str, command: Command) -> None:
    *modifiers, base = name.split("+")
    if not _MODIFIERS.issuperset(modifiers) or not (name in _KNOWN or base in _KNOWN or _is_character(base)):
        example = "Write it like f2, ctrl+x, alt+left or slash."
        raise UsageError(f"{name!r} is not a valid key for {command.id}.", example)
    if name in _FIXED and _FIXED[name] != command.id:
        raise UsageError(f"{name} cannot be a key of {command.id}.", "This key is reserved.")
    if command.has_priority and not {"ctrl", "alt"}.intersection(modifiers) and _is_character(base):
        raise UsageError(f"{name} alone would block typing.", f"Use a key with ctrl+ for {command.id}.")


def _is_character(base: str) -> bool:
    """Return whether a key types a character or is the name of one."""
    if len(base) <= 1:
        return bool(base)
    try:
        return bool(unicodedata.lookup(base.replace("_", " ").upper()))
    except KeyError:
        return base == "space"
