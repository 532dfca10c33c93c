"""The settings in force in this sitting, and what the settings file will make of them.

Owns what the app obeys at once, and when the rest takes effect. Values and sources are `app.settings`' business.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.setting_meanings import MEANINGS, Meaning
from app.settings import (
    Origin,
    Settings,
    load_settings,
    origins_of,
    parse_setting,
    setting_text,
    settings_file,
    variable_of,
)

__all__ = ["SettingRow", "SettingsBook"]

_HIDDEN = "(set, not shown)"
_NEXT_START = "It takes effect at the next start of app and service."


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting as a list shows it; `upcoming` is its value from the next start on where that is another."""

    name: str
    value: str
    upcoming: str | None
    origin: Origin


class SettingsBook:
    """`settings` are in force; `flags` and `environment` are what they were made of, besides the file."""

    def __init__(
        self,
        settings: Settings,
        flags: Mapping[str, object] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.path = settings_file(environment)
        self._in_force = settings
        self._flags = flags or {}
        self._environment = environment
        self._on_change: dict[str, Callable[[], None]] = {}

    @property
    def settings(self) -> Settings:
        """What is in force now."""
        return self._in_force

    @property
    def keys(self) -> Mapping[str, str]:
        """Other keys of commands, by the commands' ids."""
        return self._in_force.keys

    def on_change(self, name: str, callback: Callable[[], None]) -> None:
        """Call back when this setting, one that is obeyed at once, has another value."""
        self._on_change[name] = callback

    def drop_keys(self) -> None:
        """Do without a person's keys: they cannot be bound."""
        self._in_force = replace(self._in_force, keys={})

    def rows(self) -> tuple[SettingRow, ...]:
        """Return every setting, in the order of its meanings. Raises UsageError for a file that was broken."""
        upcoming, origins = load_settings(self._flags, self._environment), origins_of(self._flags, self._environment)
        return tuple(self._row(name, upcoming, origins[name]) for name in MEANINGS)

    def _row(self, name: str, upcoming: Settings, origin: Origin) -> SettingRow:
        now, then = getattr(self._in_force, name), getattr(upcoming, name)
        changes = now != then and not MEANINGS[name].is_live
        return SettingRow(name, shown(name, now), shown(name, then) if changes else None, origin)

    def text(self, name: str) -> str:
        """Return the value from the next start on, as it can be edited; "" for one that is secret."""
        if MEANINGS[name].is_secret:
            return ""
        return setting_text(getattr(load_settings(self._flags, self._environment), name))

    async def change(self, name: str, text: str | None) -> str:
        """Write `text` to the settings file, or take the setting out of it for None; return when it takes effect.

        Raises UserError for a value that will not do, or a file that cannot be written.
        """
        from app.settings_file import write_setting

        value = None if text is None else self._checked(name, text)
        await asyncio.to_thread(write_setting, self.path, name, value)
        if MEANINGS[name].is_live:
            loaded: Any = getattr(load_settings(self._flags, self._environment), name)
            self._in_force = replace(self._in_force, **{name: loaded})
            self._on_change[name]()
        return self._told(name)

    def _checked(self, name: str, text: str) -> object:
        value: Any = parse_setting(name, text)
        if name == "keys":
            from tui.keymap import check_keys

            check_keys(value)
        return value

    def _told(self, name: str) -> str:
        match origins_of(self._flags, self._environment)[name]:
            case Origin.ENVIRONMENT:
                return f"{variable_of(name)} in the environment goes before the settings file."
            case Origin.FLAG:
                return "What the command line gave goes before the settings file."
        return "It is in force." if MEANINGS[name].is_live else _NEXT_START

    def detail(self, name: str) -> str:
        """Return what a setting means, what it takes, when it takes effect and who else sets it."""
        meaning = MEANINGS[name]
        effect = "Takes effect at once" if meaning.is_live else "Takes effect at the next start of app and service"
        default = shown(name, getattr(Settings(), name))
        return f"{meaning.text}{_choices(meaning)}\n{effect}. Default: {default}. Variable: {variable_of(name)}."


def _choices(meaning: Meaning) -> str:
    return f" One of {', '.join(meaning.choices)}." if meaning.choices else ""


def shown(name: str, value: object) -> str:
    """Return a value for a person's eyes: a dash for nothing, no secret."""
    text = setting_text(value)
    return _HIDDEN if text and MEANINGS[name].is_secret else text or "–"
