"""Custom keys for commands from the settings, such as `quit = "ctrl+x,f12"`.

Owns their validation. Textual binds the keys.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping

from textual.keys import Keys

from quantizer.system.errors import UsageError
from tui.commands import APP_COMMANDS, FEATURES, Command

_FIXED = {"ctrl+q": "quit", "ctrl+p": ""}  # Textual's own precede all others
_YIELDING = {"interrupt", "suspend"}  # any command may take their keys, as quit and undo do
_KNOWN = {key.value for key in Keys}
_MODIFIERS = {"ctrl", "alt", "shift", "super", "hyper", "meta"}


def check_keys(keys: Mapping[str, str]) -> None:
    """Raise UsageError for an unknown command, an invalid key, a key that would block typing, and two commands of one
    screen with the same key. Imports every screen."""
    tables = dict(_tables())
    commands = _with_keys(tables)
    for command_id, names in keys.items():
        if command_id not in commands:
            raise UsageError(f"{command_id!r} is not a command with a key.", "F10 lists these commands, under keys.")
        for name in names.split(","):
            _check_key(name, commands[command_id])
    for title, table in tables.items():
        _check_apart(title, table, keys)


def ids_with_keys() -> list[str]:
    """Return the sorted ids of the commands that can have custom keys. Imports every screen."""
    return sorted(_with_keys(dict(_tables())))


def _with_keys(tables: Mapping[str, tuple[Command, ...]]) -> dict[str, Command]:
    return {command.id: command for table in tables.values() for command in table if command.keys}


def _tables() -> Iterator[tuple[str, tuple[Command, ...]]]:
    for place in FEATURES:
        yield place.title, (*place.screen_class().TABLE, *APP_COMMANDS)


def _check_key(name: str, command: Command) -> None:
    *modifiers, base = name.split("+")
    if not _MODIFIERS.issuperset(modifiers) or not (name in _KNOWN or base in _KNOWN or _is_character(base)):
        raise UsageError(
            f"{name!r} is not a valid key for {command.id}.", "Write it like f2, ctrl+x, alt+left or slash."
        )
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


def _check_apart(title: str, table: tuple[Command, ...], keys: Mapping[str, str]) -> None:
    owners: dict[str, str] = {}
    for command in table:
        for name in filter(None, command.bound_keys(keys).split(",")):
            if command.id in _YIELDING and command.id not in keys:
                continue
            other = owners.setdefault(name, command.id)
            if other != command.id:
                raise UsageError(
                    f"{name} is assigned to both {other} and {command.id} in {title}.", "Change one of them."
                )
