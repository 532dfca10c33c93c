"""The chat templates of a checkpoint, by name. They are rendered elsewhere, sandboxed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quantizer.checkpoint.safetensors import read_json
from quantizer.tokenizers.folder import TokenizerFolder, as_object, read_text, unsound

__all__ = ["DEFAULT", "read_chat_templates"]

DEFAULT = "default"
_MAX_BYTES = 4 << 20
_MAX_TEMPLATES = 64


def read_chat_templates(folder: TokenizerFolder) -> dict[str, str]:
    """Return templates by name, "default" being the one without; files go before settings, as they do in transformers.

    Raises CheckpointError for files and settings that hold no text.
    """
    templates = _in_settings(folder.settings.values.get("chat_template"))
    whole = folder.file("chat_template.json")
    if whole is not None:
        templates |= _in_settings(as_object(read_json(whole), whole.name).get("chat_template"))
    for path in _files(folder):
        name = path.stem if path.parent != folder.path else DEFAULT
        templates[name] = read_text(path, _MAX_BYTES)
    if len(templates) > _MAX_TEMPLATES:
        raise unsound("The list of chat templates")
    return templates


def _in_settings(setting: object) -> dict[str, str]:
    if setting is None:
        return {}
    if isinstance(setting, str):
        return {DEFAULT: setting}
    if not isinstance(setting, list) or not all(isinstance(entry, dict) for entry in setting):
        raise unsound("The chat template")
    return dict(map(_named, setting))


def _named(entry: Mapping[str, object]) -> tuple[str, str]:
    name, template = entry.get("name"), entry.get("template")
    if not isinstance(name, str) or not isinstance(template, str):
        raise unsound("The list of chat templates")
    return name, template


def _files(folder: TokenizerFolder) -> list[Path]:
    main = folder.file("chat_template.jinja")
    further = sorted((folder.path / "additional_chat_templates").glob("*.jinja"))
    return ([main] if main else []) + further
