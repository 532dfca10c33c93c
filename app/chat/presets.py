"""What the user keeps beside chats: named settings in `<data>/presets.toml`, and texts in `<data>/prompts/`. A few of
both ship with localllm (`assets/presets.toml`, `assets/prompts/`); one of the user's of the same name takes its place.

The user may edit both files, so what they contain is untrusted; filling in the {{placeholders}} of a text is the
user's.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from app.chat.conversation import ChatSettings
from app.chat.sampling_options import CHAT_OPTIONS, valid_options
from app.chat.store.database import storable
from quantizer.system.errors import UsageError
from quantizer.system.files import PRIVATE_FILE, explained, open_regular, private_folder, read_regular, write_atomically

VARIABLE = re.compile(r"\{\{[^{}\n]*\}\}")  # a placeholder in a text of the library
_FILE_NAME = "presets.toml"
_SYSTEM = "system"
MAX_PROMPT_BYTES = 64 * 1024
_FOLDER = "prompts"
_SUFFIXES = (".md", ".txt")
_MAX_PROMPTS = 1000
_CHECK = "Check its name and its permissions."


class Presets:
    """The presets of one data folder. Every method raises StorageError if the file cannot be used, and UsageError if
    it is invalid."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / _FILE_NAME

    def all(self) -> dict[str, ChatSettings]:
        """Return the user's presets."""
        try:
            with explained(f"{self._path} cannot be read", "Check its permissions."):
                tables = tomllib.loads(self._text())
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self._path} is not valid TOML: {error}.", "Fix it, or move it away.") from error
        return {name: self._settings(name, table) for name, table in tables.items()}

    def get(self, name: str) -> ChatSettings:
        """Return a preset, the user's or one that ships. Raises UsageError that lists all for an unknown one."""
        own = self.all()
        presets = {**own, **{each: shipped for each, shipped in shipped_presets().items() if each not in own}}
        name = _completed(name, presets)
        if name not in presets:
            remedy = f"Presets: {', '.join(presets)}. /options in the full screen saves another."
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
            return read_regular(self._path).decode("utf-8")
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


def _completed(begun: str, names: Iterable[str]) -> str:
    """Return the only one of `names` that begins with what was typed, as Enter completes it; else that itself."""
    fitting = [name for name in names if begun and name.startswith(begun)]
    return fitting[0] if len(fitting) == 1 else begun


@cache
def shipped_presets() -> Mapping[str, ChatSettings]:
    """Return the presets that ship with localllm."""
    tables = tomllib.loads(files("assets").joinpath("presets.toml").read_text(encoding="utf-8"))
    found = {}
    for name, table in tables.items():
        options = {key: value for key, value in table.items() if key != _SYSTEM}
        found[name] = ChatSettings(system=table.get(_SYSTEM, ""), options=valid_options(options))
    return found


@cache
def shipped_prompts() -> Mapping[str, str]:
    """Return the prompts that ship with localllm, by name and in order."""
    folder = files("assets").joinpath("prompts")
    texts = {each.name: each.read_text(encoding="utf-8").strip() for each in folder.iterdir()}
    return {name.removesuffix(".md"): texts[name] for name in sorted(texts)}


def _toml(name: str, settings: ChatSettings) -> str:
    values: Mapping[str, object] = {
        **({_SYSTEM: storable(settings.system)} if settings.system else {}),
        **valid_options(settings.options),
    }
    written = {key: _quoted(value) if isinstance(value, str) else repr(value) for key, value in values.items()}
    return "\n".join([f"[{_quoted(name)}]", *(f"{key} = {value}" for key, value in written.items())]) + "\n"


def _quoted(text: str) -> str:
    """Quote a text for TOML, whose escapes are JSON's except for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class PromptLibrary:
    """The prompts of one data folder. Every method raises StorageError if the folder or file cannot be used."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / _FOLDER

    def names(self) -> tuple[str, ...]:
        """Return the names of the user's prompts in order: of the files ending in .md or .txt, without that ending."""
        return tuple(sorted(self._paths()))

    def get(self, name: str) -> str:
        """Return the text of a prompt, the user's or one that ships. Raises UsageError for an unknown name, and for a
        file that is no text."""
        paths, shipped = self._paths(), shipped_prompts()
        name = _completed(name, {**paths, **shipped})
        if name not in paths and name in shipped:
            return shipped[name]
        if name not in paths:
            known = ", ".join([*sorted(paths), *(each for each in shipped if each not in paths)])
            remedy = f"Prompts: {known}. Yours are text files such as {self.folder / 'summary.md'}."
            raise UsageError(f"There is no prompt {name}.", remedy)
        return read_text(paths[name], MAX_PROMPT_BYTES).strip()

    def _paths(self) -> dict[str, Path]:
        """Return the files by name; a link is none, since a prompt is read without a further question."""
        with explained(f"{self.folder} cannot be read", "Check its permissions."):
            try:
                with os.scandir(self.folder) as entries:
                    found = [Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)]
            except FileNotFoundError:
                return {}
        prompts = sorted(file for file in found if file.suffix in _SUFFIXES and not file.name.startswith("."))
        return {file.stem: file for file in reversed(prompts[:_MAX_PROMPTS])}


def read_text(path: Path, most_bytes: int) -> str:
    """Return the text of a regular file. Raises StorageError if it cannot be read or is no such file, UsageError if it
    is too large or not UTF-8."""
    with explained(f"{path.name} cannot be read", _CHECK), open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise UsageError(f"{path.name} is larger than {most_bytes >> 10} KiB.", "Shorten it.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name} is not UTF-8: byte {error.start:,} is invalid.", "Save it as UTF-8.") from error
