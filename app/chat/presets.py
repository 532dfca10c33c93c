"""Presets: named chat settings in `<data>/presets.toml`, a table each, which the user may edit.

Owns the file. Applying a preset to a chat is the caller's.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.chat.conversation import ChatSettings
from app.chat.database import storable
from app.chat.sampling_options import CHAT_OPTIONS, valid_options
from quantizer.system.errors import UsageError
from quantizer.system.files import PRIVATE_FILE, explained, private_folder, write_atomically

_FILE_NAME = "presets.toml"
_SYSTEM = "system"


class Presets:
    """The presets of one data folder. Every method raises StorageError if the file cannot be used, and UsageError if
    it is invalid."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / _FILE_NAME

    def all(self) -> dict[str, ChatSettings]:
        """Return the presets by name, in the order of the file."""
        try:
            with explained(f"{self._path} cannot be read", "Check its permissions."):
                tables = tomllib.loads(self._text())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"{self._path} is not valid TOML: {error}.", "Fix it, or move it away.") from error
        return {name: self._settings(name, table) for name, table in tables.items()}

    def get(self, name: str) -> ChatSettings:
        """Return a preset. Raises UsageError that lists all for an unknown one."""
        presets = self.all()
        if name not in presets:
            remedy = f"Presets: {', '.join(presets)}." if presets else "/options in the full screen saves the first."
            raise UsageError(f"There is no preset {name}.", remedy)
        return presets[name]

    def save(self, name: str, settings: ChatSettings) -> None:
        """Save `settings` as `name`, replacing an earlier preset. The file is rewritten without its comments."""
        name = storable(name.strip())
        if not name:
            raise UsageError("A preset needs a name.", "Enter one.")
        presets = {**self.all(), name: settings}
        with explained(f"{self._path} cannot be written", "Make room, or check the folder."):
            private_folder(self._path.parent)
            text = "\n".join(_toml(each, presets[each]) for each in presets)
            write_atomically(self._path, text, sync=True, mode=PRIVATE_FILE)

    def _text(self) -> str:
        """Return the text of the file, "" where there is none. Raises OSError."""
        try:
            return self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def _settings(self, name: str, table: Any) -> ChatSettings:
        if not isinstance(table, dict):
            raise UsageError(f"{self._path}: {name} is not a table.", f"Write [{name}] above its settings.")
        options = {key: value for key, value in table.items() if key != _SYSTEM}
        allowed = valid_options(options)
        for key in options:
            if key not in allowed:
                names = ", ".join(option.name for option in CHAT_OPTIONS)
                raise UsageError(
                    f"{self._path}: {key} of {name} cannot be {options[key]}.", f"A preset sets {_SYSTEM}, {names}."
                )
        system = table.get(_SYSTEM, "")
        if not isinstance(system, str):
            raise UsageError(f"{self._path}: {_SYSTEM} of {name} is not a text.", "Put it in quotes.")
        return ChatSettings(system=system, options=allowed)


def _toml(name: str, settings: ChatSettings) -> str:
    values: Mapping[str, object] = {
        **({_SYSTEM: storable(settings.system)} if settings.system else {}),
        **valid_options(settings.options),
    }
    lines = [f"[{_quoted(name)}]", *(f"{key} = {_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """Quote a text for TOML, whose escapes are JSON's except for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
