"""One typed settings object: defaults < TOML file < LOCALLLM_* environment < flags.

Owns names, types and sources of settings. Knows nothing of what they do.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import platformdirs

from quantizer.errors import UsageError

__all__ = ["Settings", "load_settings"]

ENVIRONMENT_PREFIX = "LOCALLLM_"
DEFAULT_PORT = 11500
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set. 0 or an empty text means: chosen by localllm."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    also: bool = False  # listen on the ports of Ollama, LM Studio and llama.cpp too, where those are free
    api_key: str = ""
    connect: str = ""  # the address of an engine elsewhere to chat with, instead of a service of this machine
    model: str = "guide"
    ctx: int = 0  # tokens of context
    kv_type: str = ""  # what the KV cache stores: TYPE or K_TYPE,V_TYPE, such as q8_0
    context_shift: bool = False  # answers that fill the context go on, and forget the oldest tokens
    threads: int = 0
    parallel: int = 8  # answers at once
    keep_alive: str = "10m"  # how long an idle model stays that a request has loaded: "90s", "1h", -1 for good, 0 not
    max_memory: str = ""  # main memory that all models may take together, such as 12GiB; empty: what there is
    draft: str = ""  # a small model with the same vocabulary that drafts for the default model
    lora: tuple[str, ...] = ()  # adapters of the default model, each FILE or FILE=NAME
    control_vector: tuple[str, ...] = ()  # directions added in the default model, each FILE or FILE=SCALE
    gpu: bool = True  # use what GPUs there are; without, everything is the processor's
    rpc: str = ""  # llama.cpp RPC servers whose devices are used too, host:port, separated by commas
    when_unfit: str = "warn"  # of a model that fits only in part: "warn", "ask" first, or "load" it without a word
    idle_tune: bool = True  # measure in quiet moments how a model that is new here runs fastest
    anticipate: bool = True  # compute in quiet moments what the next turn of a chat is sure to begin with
    origins: str = ""  # web pages that may use the service, such as http://localhost:3000, separated by commas
    access_log: bool = False  # a line on stderr for each request: route, status, time, model, tokens; never a prompt
    engine: str = "llama"  # or "fake": random letters at 200 a second, for working on clients
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
    """Return the settings in force. Flags whose value is None were not given.

    Raises UsageError that names the source for an unknown name, a value of the wrong type or an unreadable file.
    """
    path = settings_file(environment)
    settings = Settings()
    for source, values in (
        (str(path), _from_file(path)),
        ("the environment", _from_environment(environment)),
        ("the command line", {name: value for name, value in (flags or {}).items() if value is not None}),
    ):
        settings = replace(settings, **{name: _typed(name, value, source) for name, value in values.items()})  # type: ignore[arg-type]
    return settings


def _from_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"The settings file {path} cannot be read: {error}.", "Mend or remove it.") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    names = {f"{ENVIRONMENT_PREFIX}{item.name.upper()}": item.name for item in fields(Settings)}
    return {name: environment[variable] for variable, name in names.items() if environment.get(variable)}


def _typed(name: str, value: object, source: str) -> object:
    known = {item.name: type(getattr(Settings(), item.name)) for item in fields(Settings)}
    if name not in known:
        raise UsageError(f"{source} sets {name!r}, which is no setting.", f"Known: {', '.join(sorted(known))}.")
    kind = Path if issubclass(known[name], Path) else known[name]
    if kind is tuple:
        return _texts(name, value, source)
    if isinstance(value, kind):
        return value
    try:
        if isinstance(value, str):
            return _BOOLEANS[value.lower()] if kind is bool else kind(value)
    except (ValueError, KeyError):
        pass
    raise UsageError(f"{source} sets {name} to {value!r}.", f"It takes a value of type {kind.__name__}.")


def _texts(name: str, value: object, source: str) -> tuple[str, ...]:
    """Return a list setting: a list of texts, or one text of several separated as paths are on this system."""
    items = value.split(os.pathsep) if isinstance(value, str) else value
    if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
        return tuple(item for item in items if item)
    raise UsageError(f"{source} sets {name} to {value!r}.", "It takes a list of texts.")
