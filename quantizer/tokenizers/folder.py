"""The tokenizer's files in a checkpoint folder, parsed as far as their outer shape, and its chat templates.

Owns which files there are; their contents are interpreted per kind of tokenizer, and templates are rendered elsewhere,
sandboxed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError
from quantizer.checkpoint.safetensors import as_object, read_object
from quantizer.system.files import explained


@dataclass(frozen=True, slots=True)
class TokenizerFolder:
    """`tokenizer` is tokenizer.json, empty when there is none; the others are empty likewise."""

    path: Path
    tokenizer: Mapping[str, Any]
    settings: Config
    generation: Config

    @classmethod
    def read(cls, path: Path) -> TokenizerFolder:
        """Parse what is there. Raises CheckpointError for a file that is not an object of JSON."""
        return cls(
            path,
            _optional_object(path / "tokenizer.json"),
            Config(_optional_object(path / "tokenizer_config.json")),
            Config(_optional_object(path / "generation_config.json")),
        )

    @property
    def model(self) -> dict[str, Any]:
        return as_object(self.tokenizer.get("model"), "the model in tokenizer.json")

    def file(self, *names: str) -> Path | None:
        """Return the first of several files that exists."""
        return next((self.path / name for name in names if (self.path / name).is_file()), None)


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Return the whole of a file. Raises CheckpointError when it is larger than `max_bytes` or cannot be read."""
    with explained(f"{path} cannot be read", "Check its permissions.", CheckpointError):
        if path.stat().st_size > max_bytes:
            raise CheckpointError(f"{path.name} is too large.", "Download the checkpoint again.")
        return path.read_bytes()


def read_text(path: Path, max_bytes: int) -> str:
    """Return like `read_bytes`, of a file in UTF-8."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise unsound(path.name) from error


def unsound(noun: str) -> CheckpointError:
    """Return the error for data that is not sound."""
    return CheckpointError(f"{noun} is not sound.", "Download the checkpoint again.")


def _optional_object(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


DEFAULT_TEMPLATE = "default"
_MAX_TEMPLATE_BYTES = 4 << 20
_MAX_TEMPLATES = 64


def read_chat_templates(folder: TokenizerFolder) -> dict[str, str]:
    """Return templates by name, "default" being the one without; files go before settings, as they do in transformers.

    With `chat_template.jinja` those of the settings do not count at all. Raises CheckpointError for files and settings
    that hold no text.
    """
    main = folder.file("chat_template.jinja")
    templates = {} if main else _json_templates(folder)
    files = {DEFAULT_TEMPLATE: main} if main else {}
    files |= {path.stem: path for path in sorted((folder.path / "additional_chat_templates").glob("*.jinja"))}
    templates |= {name: read_text(path, _MAX_TEMPLATE_BYTES) for name, path in files.items()}
    if len(templates) > _MAX_TEMPLATES:
        raise unsound("The list of chat templates")
    return templates


def _json_templates(folder: TokenizerFolder) -> dict[str, str]:
    """Return the templates of JSON files: the tokenizer's, else the processor's; a file of its own precedes both."""
    templates = _in_settings(folder.settings.values.get("chat_template"))
    if not templates:
        templates = _in_settings(_optional_object(folder.path / "processor_config.json").get("chat_template"))
    return templates | _in_settings(_optional_object(folder.path / "chat_template.json").get("chat_template"))


def _in_settings(setting: object) -> dict[str, str]:
    if setting is None:
        return {}
    if isinstance(setting, str):
        return {DEFAULT_TEMPLATE: setting}
    if isinstance(setting, dict):
        setting = [{"name": name, "template": template} for name, template in setting.items()]
    if not isinstance(setting, list) or not all(isinstance(entry, dict) for entry in setting):
        raise unsound("The chat template")
    return dict(map(_named, setting))


def _named(entry: Mapping[str, object]) -> tuple[str, str]:
    name, template = entry.get("name"), entry.get("template")
    if not isinstance(name, str) or not isinstance(template, str):
        raise unsound("The list of chat templates")
    return name, template
