"""The table of settings, their sources (defaults < TOML file < LOCALLLM_* environment < flags), and the settings file.

A change to the file keeps its comments and order.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs

from app.options.option import Effect, Group, Kind, Option, Section, format_value, option, rows
from app.settings.parsing import (
    parse_byte_size,
    parse_duration,
    parse_host_names,
    parse_origins,
    parse_rpc_endpoints,
    parse_variable_names,
    parse_web_search,
    projector_file,
)
from quantizer.system.errors import UsageError
from quantizer.system.files import PRIVATE_FILE, explained, private_folder, read_regular, write_atomically

ENVIRONMENT_PREFIX = "LOCALLLM_"
DEFAULT_PORT = 11500
NO_DRAFT = "none"  # as `draft`: nothing drafts, not even a head that lies beside a model
COPY_DRAFT = "copy"  # as `draft`: a low-bit copy of the model itself, where that pays and no head lies beside it
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_TYPES = {Kind.INTEGER: int, Kind.FLAG: bool, Kind.TEXT: str, Kind.MODEL: str, Kind.PATH: Path}
_ENVIRONMENT, _COMMAND_LINE = "The environment", "The command line"  # as sources of settings


def _check_byte_size(text: str) -> None:
    if text:
        parse_byte_size(text)


def _check_kv_types(text: str) -> None:
    from offload.footprint.kv_cache import parse_kv_types

    parse_kv_types(text)


def _check_not_empty(text: str) -> None:
    if not text.strip():
        raise UsageError("This cannot be empty.", "Reset it to get the default.")


def _absolute_projector(choice: str) -> str:
    return str(projector_file(choice) or choice)  # for a service with another working folder


GUIDE = "guide"  # the built-in model: only answers questions about localllm
_DATA_DIR = Path(platformdirs.user_data_dir("localllm", appauthor=False))
_CACHE_DIR = Path(platformdirs.user_cache_dir("localllm", appauthor=False))
_model = partial(option, group=Group.MODEL, effect=Effect.AT_LOAD)
_loading = partial(option, group=Group.MODEL)
_speed = partial(option, group=Group.SPECULATION)
_service = partial(option, group=Group.SERVICE)
_chat = partial(option, group=Group.CHAT, effect=Effect.AT_ONCE)
_app = partial(option, group=Group.APP, effect=Effect.AT_ONCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, in the order of the settings screen. 0 or empty: chosen automatically."""

    model: str = _loading(
        GUIDE,
        "Default model, which answers at the start and where a client names none: guide, a name in the library, or a "
        "path to a GGUF.",
        kind=Kind.MODEL,
        flags=("--model", "-m"),
        metavar="MODEL",
        check=_check_not_empty,
        title="Default model",
    )
    ctx: int = _model(
        0,
        "Context length in tokens: how much text of a chat the model sees at once. 0: chosen from the model and free "
        "memory.",
        most=1 << 30,
        plan_field="n_ctx",
        title="Context length",
        unset="auto",
    )
    kv_type: str = _model(
        "",
        "KV cache type: how exactly the model's memory of the context is kept. f16 is exact, q8_0 takes half the "
        "memory and loses almost nothing; or K_TYPE,V_TYPE.",
        metavar="TYPE",
        check=_check_kv_types,
        plan_field="kv_type",
        title="Cache type",
        unset="auto",
    )
    context_shift: bool = _model(
        False,
        "Drop the oldest tokens when an answer fills the context.",
        plan_field="context_shift",
        title="Drop the oldest text",
    )
    deterministic_answers: bool = _loading(
        False,
        "Answer the same request with the same text each time (with a seed or at temperature 0), whatever else runs: "
        "slower, one answer at a time.",
        title="Repeatable answers",
    )
    threads: int = _model(
        0,
        "CPU threads; 0: chosen automatically.",
        most=512,
        plan_field="n_threads",
        title="Processor threads",
        unset="auto",
        section=Section.SPEED,
    )
    parallel: int = _model(
        8,
        "Number of concurrent answers.",
        least=1,
        most=256,
        plan_field="n_sequences",
        title="Answers at once",
        section=Section.SPEED,
    )
    keep_alive: str = _loading(
        "10m",
        "How long an idle model stays loaded: 90s, 1h, -1 forever, 0 unload at once.",
        metavar="DURATION",
        check=parse_duration,
        title="Keep a model loaded",
    )
    any_name: bool = _service(
        True,
        "Requests for names that no local model can have (gpt-4o, default) get the default model; otherwise an error.",
        title="Accept any model name",
    )
    max_memory: str = _loading(
        "",
        "Memory limit for all models together, such as 12GiB; empty: no limit.",
        metavar="SIZE",
        check=_check_byte_size,
        title="Memory limit",
        unset="no limit",
    )
    when_unfit: str = _loading(
        "warn",
        "What to do with a model that fits only partly: warn, ask first, or load it without asking.",
        choices=("warn", "ask", "load"),
        title="A model that fits partly",
    )
    draft: str = _speed(
        "",
        "A small model with the same vocabulary, or a draft head, that guesses ahead for the default model, which then "
        "only checks: faster, same answers. copy: a low-bit copy of the model; none: no drafts.",
        metavar="MODEL|copy|none",
        title="Draft model",
        unset="auto",
    )
    projector: str = _loading(
        "auto",
        "Vision/audio projector (mmproj): auto (the one next to each model), none, a type to prefer (F16, "
        "BF16, Q8_0, F32), or a file for the default model.",
        metavar="auto|none|TYPE|FILE",
        flags=("--projector", "--mmproj"),  # the second is llama.cpp's name for it
        resolve=_absolute_projector,
        title="Pictures and sounds",
    )
    lora: tuple[str, ...] = _loading(
        (),
        "LoRA adapters of the default model: small files that change how it answers.",
        metavar="FILE[=NAME]",
        title="LoRA adapters",
        unset="none",
    )
    control_vector: tuple[str, ...] = _loading(
        (),
        "Control vectors of the default model: files that steer its tone.",
        metavar="FILE[=SCALE]",
        title="Control vectors",
        unset="none",
    )
    gpu: bool = _loading(True, "Use GPUs; otherwise only the CPU.", title="Use GPUs", section=Section.SPEED)
    numa: str = _loading(
        "auto",
        "How threads are spread where a machine's memory belongs to several processors (NUMA): auto, off, distribute, "
        "isolate, numactl.",
        choices=("auto", "off", "distribute", "isolate", "numactl"),
        title="Memory of several processors",
        section=Section.SPEED,
    )
    rpc: str = _loading(
        "",
        "llama.cpp RPC servers on other machines that compute a part of each model. Unauthenticated and unencrypted.",
        metavar="HOST:PORT",
        separator=",",
        check=parse_rpc_endpoints,
        title="Machines that help",
        unset="none",
        section=Section.PRIVACY,
    )
    idle_tune: bool = _speed(
        True, "Measure the fastest settings of a new model while the machine is idle.", title="Measure when idle"
    )
    weight_copies: bool = _speed(
        True,
        "Read prompts with a copy of the weights whose type this processor reads slowly, in one that it reads faster, "
        "where memory is left for it.",
        effect=Effect.AT_LOAD,
        title="Copies of slow weights",
    )
    prefill_ahead: bool = _speed(
        True,
        "Read what the next question will contain before it is sent (prefill), so that answers begin sooner: the chat "
        "so far, attachments, the draft as you type. Not on battery, and behind every answer.",
        title="Read ahead",
    )
    save_prefixes: bool = _speed(
        True,
        "Save computed prefixes of chats on disk, to go on at once after a restart; otherwise only in memory.",
        effect=Effect.AT_LOAD,
        title="Keep what was read on disk",
        section=Section.PRIVACY,
    )
    draft_corpus: bool = _speed(
        True,
        "Keep texts of files that chats of a folder read, up to 1 MiB a folder, and look up in them what later answers "
        "there may go on with: faster where they quote or edit such files, with the same answers.",
        effect=Effect.AT_LOAD,
        title="Draft from files read before",
        section=Section.PRIVACY,
    )
    host: str = _service(
        "127.0.0.1",
        "Address of the service; beyond this machine clients need an API key.",
        title="Address",
        section=Section.PRIVACY,
    )
    port: int = _service(
        DEFAULT_PORT, "Port of the service; 0: any free port.", most=65_535, title="Port", unset="any free port"
    )
    also: bool = _service(
        False,
        "Listen on the ports of Ollama, LM Studio and llama.cpp too, where they are free.",
        title="Ports of other programs",
    )
    keep_service: str = _service(
        "10m",
        "How long the service that a command started stays for the next one: 90s, 1h, -1 forever, 0: ends with the "
        "command.",
        metavar="DURATION",
        check=parse_duration,
        title="Keep the service running",
    )
    api_key: str = _service(
        "",
        "API key; prefer LOCALLLM_API_KEY (arguments are visible in `ps`).",
        metavar="KEY",
        is_secret=True,
        title="API key",
        unset="none",
        section=Section.PRIVACY,
    )
    hosts: str = _service(
        "",
        "More names of this machine for clients without a key, such as host.docker.internal; comma-separated.",
        metavar="NAME,...",
        separator=",",
        check=parse_host_names,
        title="More names of this machine",
        unset="none",
        section=Section.PRIVACY,
    )
    origins: str = _service(
        "",
        "Web pages that may use the service: origins, schemes (app://), localhost, app, tauri, vscode; "
        "comma-separated.",
        metavar="ORIGIN,...",
        separator=",",
        check=parse_origins,
        title="Web pages that may use it",
        unset="none",
        section=Section.PRIVACY,
    )
    access_log: bool = _service(
        False,
        "Log each request to stderr: route, status, time, model, tokens; never a prompt.",
        title="Log requests",
        section=Section.PRIVACY,
    )
    responses_size: str = _service(
        "512MiB",
        "Disk space for the responses and conversations of /v1/responses, such as 512MiB; 0: store none.",
        metavar="SIZE",
        check=lambda text: _check_byte_size(text if text.strip() != "0" else ""),
        title="Space for stored responses",
        unset="none",
        section=Section.PRIVACY,
    )
    responses_days: int = _service(
        30,
        "Days that an unused stored response is kept; 0: no limit.",
        most=36_500,
        title="Keep stored responses",
        unset="no limit",
        section=Section.PRIVACY,
    )
    fetch_media_urls: bool = _service(
        False,
        "Fetch pictures and sounds that a request names by an http(s) URL from the internet.",
        title="Fetch pictures from the web",
        section=Section.PRIVACY,
    )
    connect: str = _app(
        "",
        "URL of another localllm or OpenAI-compatible engine to use instead of a local service.",
        metavar="URL",
        effect=Effect.AT_START,
        title="Another engine",
        unset="none",
        section=Section.SERVICE,
    )
    jobs_at_exit: str = _app(
        "ask",
        "What happens to running jobs when you quit; if the terminal is closed, ask means go-on.",
        choices=("ask", "go-on", "stop"),
        title="Jobs when you quit",
    )
    theme: str = _app(
        "", "Colours of the terminal app; NO_COLOR turns colours off.", metavar="NAME", title="Theme", unset="auto"
    )
    sidebar: str = _app(
        "auto",
        "Chats at the side of the open one: auto shows them from 110 columns on, on from 80; Ctrl+O shows and hides "
        "them at any width.",
        choices=("auto", "on", "off"),
        title="Chats at the side",
    )
    keys: Mapping[str, str] = _app(
        {},
        "Key bindings of the terminal app: COMMAND=KEY[,KEY], space-separated.",
        metavar="BINDINGS",
        title="Keys",
        unset="as listed by F1",
    )
    system: str = _chat("", "System prompt of new chats.", title="System prompt", unset="none")
    preset: str = _chat(
        "",
        "Preset of new chats: a name from /preset, with options and perhaps a system prompt.",
        metavar="NAME",
        title="Preset of new chats",
        unset="none",
    )
    auto_compact: bool = _chat(
        True,
        "Summarise the older messages of a chat when the context fills and cannot grow; /compact does it at any time.",
        title="Summarise long chats",
    )
    command_variables: str = _chat(
        "",
        "Environment variables that commands of models and `!COMMAND` get besides the usual ones: AWS_PROFILE, "
        "MYAPP_*; comma-separated. See `localllm help tools`.",
        metavar="NAME,...",
        separator=",",
        check=parse_variable_names,
        effect=Effect.AT_START,
        title="Variables for commands",
        unset="none",
        section=Section.PRIVACY,
    )
    web_search: str = _chat(
        "",
        "What searches the web for models (`localllm help tools`): brave, the URL of a SearXNG, or a command that gets "
        "the query as its last argument; each search asks you first.",
        metavar="brave|URL|COMMAND",
        check=parse_web_search,
        effect=Effect.AT_START,
        title="Web search",
        unset="off",
        section=Section.PRIVACY,
    )
    web_search_key: str = _chat(
        "",
        "API key of Brave Search; prefer LOCALLLM_WEB_SEARCH_KEY (arguments are visible in `ps`).",
        metavar="KEY",
        is_secret=True,
        effect=Effect.AT_START,
        title="Key of the web search",
        unset="none",
        section=Section.PRIVACY,
    )
    embedder: str = _chat(
        "",
        "Embedding model that finds passages of folders by meaning (`localllm help knowledge`): a name in the library; "
        "empty: the smallest one in it; none: by words alone.",
        kind=Kind.MODEL,
        metavar="MODEL|none",
        effect=Effect.AT_START,
        title="Search folders by meaning",
        unset="auto",
    )
    update_knowledge: bool = _chat(
        True,
        "Read what changed in folders of knowledge while the app runs (`localllm help knowledge`): behind everything "
        "else, and not on battery.",
        title="Update folders",
    )
    reranker: str = _chat(
        "",
        "Reranking model that puts the passages found in folders in order: a name in the library.",
        kind=Kind.MODEL,
        metavar="MODEL",
        effect=Effect.AT_START,
        title="Order what was found",
        unset="none",
    )
    compact_at: int = _chat(
        80,
        "Percent of the context that a chat may fill before older messages are summarised; the answer gets the rest.",
        least=20,
        most=95,
        title="Summarise at",
    )
    data_dir: Path = _service(  # noqa: RUF009 - it declares a field
        _DATA_DIR,
        "Folder of models, chats and keys.",
        default_text="the data folder of the system",
        check=_check_not_empty,
        title="Folder of models and chats",
        section=Section.PRIVACY,
    )
    cache_dir: Path = _service(  # noqa: RUF009
        _CACHE_DIR,
        "Folder of logs and caches; safe to delete.",
        default_text="the cache folder of the system",
        check=_check_not_empty,
        title="Folder of caches",
        section=Section.PRIVACY,
    )
    engine: str = _service(
        "llama", 'Engine: "llama", or "fake" (random letters, 200 per second) for client development.', title="Engine"
    )

    @property
    def url(self) -> str:
        """Where the service is reached from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def models_dir(self) -> Path:
        return self.data_dir / "models"


SETTINGS: Mapping[str, Option] = rows(Settings)


def settings_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the settings file is: LOCALLLM_CONFIG, or config.toml in the user's configuration folder."""
    override = environment.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    return (
        Path(override) if override else Path(platformdirs.user_config_dir("localllm", appauthor=False), "config.toml")
    )


def load_settings(flags: Mapping[str, object] | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings in force. A flag whose value is None is not set. Raises UsageError that names the source for
    an unknown name, a value of the wrong type or an unreadable file."""
    settings = Settings()
    for source, values in _sources(flags or {}, environment):
        settings = replace(settings, **{name: _typed(name, value, source) for name, value in values.items()})  # type: ignore[arg-type]
    return settings


# What a service does not take from its settings but from each request, or only at its end.
_PER_REQUEST = frozenset({"model", "when_unfit", "keep_service", "port"})


def service_digest(settings: Settings) -> str:
    """Return a digest of the settings of a service that a request cannot change. A service with another one answers
    otherwise: it has another context, processor threads, projector."""
    groups = (Group.MODEL, Group.SPECULATION, Group.SERVICE)
    taken = {
        name: format_value(getattr(settings, name))
        for name, row in SETTINGS.items()
        if row.group in groups and name not in _PER_REQUEST and not row.is_secret
    }
    return hashlib.sha256(repr(sorted(taken.items())).encode("utf-8", "surrogateescape")).hexdigest()[:16]


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
    found = dict.fromkeys(SETTINGS, SettingSource.DEFAULT)
    sources = _sources(flags or {}, environment)
    for origin, (_, values) in zip(
        (SettingSource.FILE, SettingSource.ENVIRONMENT, SettingSource.FLAG), sources, strict=True
    ):
        found.update(dict.fromkeys(values, origin))
    return found


def parse_setting(name: str, text: str) -> object:
    """Return the value of `text`, the inverse of `format_value`. Raises UserError for an invalid one."""
    value = _typed(name, text.strip(), "This")
    if check := SETTINGS[name].check:
        check(text.strip())
    return value


def environment_variable(name: str) -> str:
    """Return the variable of the environment that sets `name`."""
    return f"{ENVIRONMENT_PREFIX}{name.upper()}"


def _sources(flags: Mapping[str, object], environment: Mapping[str, str]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield each source with its values, later ones winning."""
    path = settings_file(environment)
    try:
        # LOCALLLM_CONFIG=/dev/null is how scripts say "no settings file"
        of_file = {} if path == Path(os.devnull) else tomllib.loads(read_regular(path).decode())
    except FileNotFoundError:
        of_file = {}
    except (OSError, ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        why = getattr(error, "strerror", "") or error
        raise UsageError(f"The settings file {path} cannot be read: {why}.", "Repair or remove it.") from error
    yield str(path), of_file
    variables = {name: environment.get(environment_variable(name)) for name in SETTINGS}
    yield _ENVIRONMENT, {name: value for name, value in variables.items() if value}
    resolved = {}
    for name, value in flags.items():
        if value is not None:
            resolve = SETTINGS[name].resolve if name in SETTINGS and value else None
            resolved[name] = resolve(str(value)) if resolve else value
    yield _COMMAND_LINE, resolved


def _typed(name: str, value: object, source: str) -> object:
    """Return `value` as the setting `name` has it. Raises UsageError that names its `source`."""
    row = SETTINGS.get(name)
    if row is None:
        cause = f"{source} sets {_shown(name)}, which is not a setting."
        raise UsageError(cause, f"Known: {', '.join(sorted(SETTINGS))}.")
    if row.kind in (Kind.TEXTS, Kind.TABLE):
        found = _texts(value) if row.kind is Kind.TEXTS else _table(value)
        if found is None:
            raise UsageError(f"{source} sets {name} to {_shown(value)}.", f"It takes {row.kind.value}.")
        return found
    if row.choices:
        choice = row.choice_of(value)
        if choice is None:
            raise UsageError(f"{source} sets {name} to {_shown(value)}.", f"It takes {', '.join(row.choices)}.")
        return choice
    hint = f"; the variable is {environment_variable(name)}" if source == _ENVIRONMENT else ""
    typed = _of_type(value, _TYPES[row.kind])
    if typed is None:
        kind = Kind.TEXT if row.kind is Kind.MODEL else row.kind
        raise UsageError(f"{source} sets {name} to {_shown(value)}.", f"It takes {kind.value}{hint}.")
    if row.is_secret and not (str(typed).isascii() and str(typed).isprintable()):
        cause = f"{source} sets {name} to a value with characters that no HTTP header can carry."
        raise UsageError(cause, f"It takes letters, digits and signs of ASCII{hint}.")
    if error := row.range_error(typed):
        raise UsageError(f"{source} sets {name} to {_cut(str(typed))}.", f"It {error}{hint}.")
    return typed


_MOST_SHOWN = 200  # characters of a value: a file may have a megabyte where a number belongs


def _shown(value: object) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _of_type(value: object, wanted: type) -> object:
    """Return a value as this type, None where it is of another. In a settings file `true` is not a number."""
    if isinstance(value, wanted) and not (wanted is int and isinstance(value, bool)):
        return value
    try:
        if isinstance(value, str):
            return _BOOLEANS[value.lower()] if wanted is bool else wanted(value)
    except (ValueError, KeyError):
        pass
    return None


def _texts(value: object) -> tuple[str, ...] | None:
    """Return a list of texts, which may be one text of several separated as paths are on this system."""
    items = value.split(os.pathsep) if isinstance(value, str) else value
    if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
        return tuple(item for item in items if item)
    return None


def _table(value: object) -> dict[str, str] | None:
    """Return a table of texts, or what one text such as `quit=ctrl+x help=f1,f12` gives."""
    pairs = [tuple(item.split("=", 1)) for item in value.split()] if isinstance(value, str) else value
    if isinstance(pairs, list) and all(len(pair) == 2 and all(pair) for pair in pairs):
        return dict(pairs)
    if isinstance(pairs, Mapping) and all(isinstance(item, str) for item in pairs.values()):
        return dict(pairs)
    return None


def write_setting(path: Path, name: str, value: object) -> None:
    """Set `name` in the file, or with None remove it; the file is replaced atomically. Raises UsageError for invalid
    TOML, StorageError where it cannot be written."""
    try:
        with explained(f"The settings file {path} cannot be written"):
            text = read_regular(path).decode("utf-8") if path.exists() else ""
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
    except (TOMLKitError, ValueError, RecursionError) as error:
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
        table[name] = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
