"""Changes to the settings file, one setting at a time, keeping comments and order.

Owns how the file is rewritten. What a value may be is decided in `app.settings.settings`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from quantizer.errors import StorageError, UsageError
from quantizer.files import write_atomically

__all__ = ["edit_toml", "write_setting"]


def write_setting(path: Path, name: str, value: object) -> None:
    """Set `name` in the file, or with None remove it; the file is replaced atomically.

    Raises UsageError for invalid TOML, StorageError where it cannot be written.
    """
    try:
        text = path.read_bytes().decode("utf-8") if path.exists() else ""
        changed = edit_toml(text, name, value)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A link to the file stays one. The file may hold a key, so only its owner can read it.
        write_atomically(path.resolve(), changed, sync=True, mode=0o600)
    except UnicodeDecodeError as error:
        raise UsageError(f"The settings file {path} cannot be read: {error}.", "Repair or remove it.") from error
    except OSError as error:
        raise StorageError(f"The settings file {path} cannot be written: {error.strerror}.") from error


def edit_toml(text: str, name: str, value: object) -> str:
    """Return the file's text with `name` set to `value`, or without it for None. Raises UsageError for invalid TOML."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise UsageError(f"The settings file cannot be read: {error}.", "Repair or remove it.") from error
    _put(document, name, value)
    return tomlkit.dumps(document)


def _put(table: MutableMapping[str, Any], name: str, value: object) -> None:
    """Set or remove; of a table that is there already only what differs, so that its comments stay too."""
    there = table.get(name)
    if value is None:
        table.pop(name, None)
    elif isinstance(value, Mapping) and isinstance(there, MutableMapping):
        for each in dict.fromkeys((*there, *value)):
            _put(there, each, value.get(each))
    elif value != there:
        table[name] = _plain(value)


def _plain(value: object) -> object:
    """Return the value as TOML has it."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
