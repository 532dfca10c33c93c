"""One typed settings object: defaults < TOML file < LOCALLLM_* environment < flags.

Owns names, types and sources of settings, and changes to the file, which keep its comments and order. Independent of
their effects.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import platformdirs

from app.settings.descriptions import DESCRIPTIONS
from quantizer.system.errors import UsageError
from quantizer.system.files import PRIVATE_FILE, explained, private_folder, write_atomically

ENVIRONMENT_PREFIX = "LOCALLLM_"
DEFAULT_PORT = 11500
NO_DRAFT = "none"  # as `draft`: nothing drafts, not even a head that lies beside a model
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_KINDS = {int: "a whole number", bool: "true or false", str: "a text", Path: "a path"}
_ENVIRONMENT = "The environment"  # as a source of settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, as `app.settings.descriptions` describes them. 0 or empty: chosen automatically."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    also: bool = False
    api_key: str = ""
    connect: str = ""
    model: str = "guide"
    system: str = ""
    preset: str = ""
    auto_compact: bool = True
    compact_at: int = 80
    ctx: int = 0
    kv_type: str = ""
    context_shift: bool = False
    threads: int = 0
    parallel: int = 8
    keep_alive: str = "10m"
    any_name: bool = True
    max_memory: str = ""
    draft: str = ""
    projector: str = "auto"
    lora: tuple[str, ...] = ()
    control_vector: tuple[str, ...] = ()
    gpu: bool = True
    rpc: str = ""
    when_unfit: str = "warn"
    idle_tune: bool = True
    prefill_ahead: bool = True
    save_prefixes: bool = True
    hosts: str = ""
    origins: str = ""
    access_log: bool = False
    responses_size: str = "512MiB"
    responses_days: int = 30
    fetch_media_urls: bool = False
    engine: str = "llama"
    jobs_at_exit: str = "ask"
    theme: str = ""
    keys: Mapping[str, str] = field(default_factory=dict, hash=False)
    data_dir: Path = Path(platformdirs.user_data_dir("localllm", appauthor=False))
    cache_dir: Path = Path(platformdirs.user_cache_dir("localllm", appauthor=False))

    @property
    def url(self) -> str:
        """Where the service is reached from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def models_dir(self) -> Path:
        return self.data_dir / "models"


def settings_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the settings file is: LOCALLLM_CONFIG, or config.toml in the user's configuration folder."""
    override = environment.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    return (
        Path(override) if override else Path(platformdirs.user_config_dir("localllm", appauthor=False), "config.toml")
    )


def load_settings(flags: Mapping[str, object] | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings in force. A flag whose value is None is not set.

    Raises UsageError that names the source for an unknown name, a value of the wrong type or an unreadable file.
    """
    settings = Settings()
    for source, values in _sources(flags or {}, environment):
        settings = replace(settings, **{name: _typed(name, value, source) for name, value in values.items()})  # type: ignore[arg-type]
    return settings


class SettingSource(StrEnum):
    """Who sets a setting, the later ones winning."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


def setting_sources(
    flags: Mapping[str, object] | None = None, environment: Mapping[str, str] = os.environ
) -> dict[str, SettingSource]:
    """Return where each setting comes from. Raises UsageError for an unreadable file."""
    found = {item.name: SettingSource.DEFAULT for item in fields(Settings)}
    sources = _sources(flags or {}, environment)
    for origin, (_, values) in zip(
        (SettingSource.FILE, SettingSource.ENVIRONMENT, SettingSource.FLAG), sources, strict=True
    ):
        found.update(dict.fromkeys(values, origin))
    return found


def parse_setting(name: str, text: str) -> object:
    """Return the value of `text`, the inverse of `format_setting`.

    Raises UsageError for an invalid value.
    """
    value = _typed(name, text.strip(), "This")
    if check := DESCRIPTIONS[name].check:
        check(text.strip())
    return value


def format_setting(value: object) -> str:
    """Return a value as the environment writes it: items of a list are separated as paths are on this system."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, bool):
        return str(value).lower()
    return os.pathsep.join(value) if isinstance(value, tuple) else str(value)


def environment_variable(name: str) -> str:
    """Return the variable of the environment that sets `name`."""
    return f"{ENVIRONMENT_PREFIX}{name.upper()}"


def _sources(flags: Mapping[str, object], environment: Mapping[str, str]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield each source with its values, later ones winning."""
    path = settings_file(environment)
    yield str(path), _from_file(path)
    yield _ENVIRONMENT, _from_environment(environment)
    yield "The command line", {name: value for name, value in flags.items() if value is not None}


def _from_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"The settings file {path} cannot be read: {error}.", "Repair or remove it.") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    names = [item.name for item in fields(Settings)]
    return {
        name: environment[environment_variable(name)] for name in names if environment.get(environment_variable(name))
    }


def _typed(name: str, value: object, source: str) -> object:
    known = {item.name: type(getattr(Settings(), item.name)) for item in fields(Settings)}
    if name not in known:
        raise UsageError(f"{source} sets {name!r}, which is not a setting.", f"Known: {', '.join(sorted(known))}.")
    kind = Path if issubclass(known[name], Path) else known[name]
    if kind is tuple:
        return _texts(name, value, source)
    if kind is dict:
        return _table(name, value, source)
    if (choices := DESCRIPTIONS[name].choices) and value not in choices:
        raise UsageError(f"{source} sets {name} to {value!r}.", f"It takes {', '.join(choices)}.")
    typed = _of_kind(value, kind)
    if typed is None:
        raise UsageError(f"{source} sets {name} to {value!r}.", f"It takes {_KINDS[kind]}{_named(name, source)}.")
    if type(typed) is int and not DESCRIPTIONS[name].least <= typed <= DESCRIPTIONS[name].most:
        allowed = f"It must be between {DESCRIPTIONS[name].least:,} and {DESCRIPTIONS[name].most:,}"
        raise UsageError(f"{source} sets {name} to {typed}.", f"{allowed}{_named(name, source)}.")
    return typed


def _of_kind(value: object, kind: type) -> object:
    """Return a value as this kind, None where it is of another. In a settings file `true` is not a number."""
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    try:
        if isinstance(value, str):
            return _BOOLEANS[value.lower()] if kind is bool else kind(value)
    except (ValueError, KeyError):
        pass
    return None


def _named(name: str, source: str) -> str:
    """Return a hint that names the environment variable, where that is the source."""
    return f"; the variable is {environment_variable(name)}" if source == _ENVIRONMENT else ""


def _texts(name: str, value: object, source: str) -> tuple[str, ...]:
    """Return a list setting: a list of texts, or one text of several separated as paths are on this system."""
    items = value.split(os.pathsep) if isinstance(value, str) else value
    if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
        return tuple(item for item in items if item)
    raise UsageError(f"{source} sets {name} to {value!r}.", "It takes a list of texts.")


def _table(name: str, value: object, source: str) -> dict[str, str]:
    """Return a table of texts, or what one text such as `quit=ctrl+x help=f1,f12` gives."""
    pairs = [tuple(item.split("=", 1)) for item in value.split()] if isinstance(value, str) else value
    if isinstance(pairs, list) and all(len(pair) == 2 and all(pair) for pair in pairs):
        return dict(pairs)
    if isinstance(pairs, Mapping) and all(isinstance(item, str) for item in pairs.values()):
        return dict(pairs)
    raise UsageError(f"{source} sets {name} to {value!r}.", "It takes NAME=TEXT, separated by spaces.")


def write_setting(path: Path, name: str, value: object) -> None:
    """Set `name` in the file, or with None remove it; the file is replaced atomically.

    Raises UsageError for invalid TOML, StorageError where it cannot be written.
    """
    try:
        with explained(f"The settings file {path} cannot be written"):
            text = path.read_bytes().decode("utf-8") if path.exists() else ""
            changed = edit_toml(text, name, value)
            private_folder(path.parent)
            # A link to the file stays one. The file may hold a key, so only its owner can read it.
            write_atomically(path.resolve(), changed, sync=True, mode=PRIVATE_FILE)
    except UnicodeDecodeError as error:
        raise UsageError(f"The settings file {path} cannot be read: {error}.", "Repair or remove it.") from error


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
