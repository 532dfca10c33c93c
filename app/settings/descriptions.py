"""The description of each setting: one table for `--help`, the settings screen and parsing.

Owns the texts, and which values are refused before they are written. Names, types and defaults are in
`app.settings.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from app.settings.origins import parse_origins
from app.settings.parsing import parse_byte_size, parse_duration, parse_host_names, parse_rpc_endpoints
from quantizer.system.errors import UsageError


def _check_byte_size(text: str) -> None:
    if text:
        parse_byte_size(text)


def _check_byte_size_or_none(text: str) -> None:
    if text.strip() != "0":
        _check_byte_size(text)


def _check_kv_types(text: str) -> None:
    from offload.footprint.kv_cache import parse_kv_types

    parse_kv_types(text)


def _check_not_empty(text: str) -> None:
    if not text.strip():
        raise UsageError("This cannot be empty.", "Reset it to get the default.")


class Effect(Enum):
    """When a new value of a setting takes effect, as text."""

    AT_ONCE = "Takes effect at once"
    AT_LOAD = "Takes effect when a model is loaded with it, else at the next start of app and service"
    AT_START = "Takes effect at the next start of app and service"


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """The text of a setting. `choices` are all values that it takes, empty where those are many; a number is between
    `least` and `most`; `check` raises UserError for a value that would be refused later.

    `metavar` names the value in `--help`. `is_secret`: never shown.
    """

    text: str
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = 2**31 - 1
    check: Callable[[str], object] | None = None
    effect: Effect = Effect.AT_START
    is_secret: bool = False
    metavar: str = ""


DESCRIPTIONS: Mapping[str, SettingDescription] = {
    "model": SettingDescription(
        "Default model: guide, a name in the library, or a path to a GGUF.", check=_check_not_empty
    ),
    "ctx": SettingDescription(
        "Context length in tokens; 0: chosen from the model and free memory.", most=1 << 30, effect=Effect.AT_LOAD
    ),
    "kv_type": SettingDescription(
        "KV cache type, such as q8_0; or K_TYPE,V_TYPE.",
        check=_check_kv_types,
        effect=Effect.AT_LOAD,
        metavar="TYPE",
    ),
    "context_shift": SettingDescription(
        "Drop the oldest tokens when an answer fills the context.", effect=Effect.AT_LOAD
    ),
    "threads": SettingDescription("CPU threads; 0: chosen automatically.", most=512, effect=Effect.AT_LOAD),
    "parallel": SettingDescription("Number of concurrent answers.", least=1, most=256, effect=Effect.AT_LOAD),
    "keep_alive": SettingDescription(
        "How long an idle model stays loaded: 90s, 1h, -1 forever, 0 unload at once.", check=parse_duration
    ),
    "any_name": SettingDescription(
        "Requests for names that no local model can have (gpt-4o, default) get the loaded model; otherwise an error."
    ),
    "max_memory": SettingDescription(
        "Memory limit for all models together, such as 12GiB; empty: no limit.", check=_check_byte_size
    ),
    "when_unfit": SettingDescription(
        "What to do with a model that fits only partly: warn, ask first, or load it without asking.",
        choices=("warn", "ask", "load"),
    ),
    "draft": SettingDescription(
        "Small model with the same vocabulary, or draft head, that drafts for the default model; none: not even the "
        "head that lies beside a model.",
        metavar="MODEL",
    ),
    "projector": SettingDescription(
        "What lets models see or hear: auto, the one that is kept with each model; a type to prefer (F16, BF16, Q8_0, "
        "F32); none; or the file of the default model.",
        metavar="auto|none|TYPE|FILE",
    ),
    "lora": SettingDescription("LoRA adapters of the default model.", metavar="FILE[=NAME]"),
    "control_vector": SettingDescription("Control vectors of the default model.", metavar="FILE[=SCALE]"),
    "gpu": SettingDescription("Use GPUs; otherwise only the CPU."),
    "rpc": SettingDescription(
        "llama.cpp RPC servers to use too. Unauthenticated and unencrypted.",
        check=parse_rpc_endpoints,
        metavar="HOST:PORT",
    ),
    "idle_tune": SettingDescription("Measure the fastest settings of a new model while the machine is idle."),
    "prefill_ahead": SettingDescription("Prefill the beginning of a chat's next turn while the machine is idle."),
    "save_prefixes": SettingDescription(
        "Save computed prefixes of chats on disk, to go on at once after a restart; otherwise only in memory.",
        effect=Effect.AT_LOAD,
    ),
    "host": SettingDescription("Address of the service; beyond this machine clients need an API key."),
    "port": SettingDescription("Port of the service; 0: any free port.", most=65_535),
    "also": SettingDescription("Listen on the ports of Ollama, LM Studio and llama.cpp too, where they are free."),
    "api_key": SettingDescription(
        "API key; prefer LOCALLLM_API_KEY (arguments are visible in `ps`).", is_secret=True, metavar="KEY"
    ),
    "hosts": SettingDescription(
        "More names of this machine for clients without a key, such as host.docker.internal; comma-separated.",
        check=parse_host_names,
        metavar="NAME,...",
    ),
    "origins": SettingDescription(
        "Web pages that may use the service: origins, schemes (app://), localhost, app, tauri, vscode; with commas.",
        check=parse_origins,
        metavar="ORIGIN,...",
    ),
    "access_log": SettingDescription("Log each request to stderr: route, status, time, model, tokens; never a prompt."),
    "responses_size": SettingDescription(
        "Disk space for the responses and conversations of /v1/responses, such as 512MiB; 0: store none.",
        check=_check_byte_size_or_none,
    ),
    "responses_days": SettingDescription("Days that an unused stored response stays; 0: no limit.", most=36_500),
    "fetch_media_urls": SettingDescription(
        "Let requests name pictures and sounds by an http(s) address, which the service fetches from the internet."
    ),
    "connect": SettingDescription(
        "URL of another localllm or OpenAI-compatible engine to use instead of a local service.", metavar="URL"
    ),
    "jobs_at_exit": SettingDescription(
        "What happens to running jobs when you quit; if the terminal is closed, ask means go-on.",
        choices=("ask", "go-on", "stop"),
        effect=Effect.AT_ONCE,
    ),
    "theme": SettingDescription("Colours of the terminal app; NO_COLOR turns colours off.", effect=Effect.AT_ONCE),
    "keys": SettingDescription(
        "Key bindings of the terminal app: COMMAND=KEY[,KEY], space-separated.", effect=Effect.AT_ONCE
    ),
    "system": SettingDescription("System prompt of new chats.", effect=Effect.AT_ONCE, metavar="TEXT"),
    "preset": SettingDescription(
        "Preset of new chats: a name of /preset, with options and perhaps a system prompt of its own.",
        effect=Effect.AT_ONCE,
        metavar="NAME",
    ),
    "auto_compact": SettingDescription(
        "Summarise the older messages of a chat when the context fills and cannot grow; /compact does it at any time.",
        effect=Effect.AT_ONCE,
    ),
    "compact_at": SettingDescription(
        "Percent of the context that a chat may fill before older messages are summarised; the answer gets the rest.",
        least=20,
        most=95,
        effect=Effect.AT_ONCE,
    ),
    "data_dir": SettingDescription("Folder of models, chats and keys.", check=_check_not_empty),
    "cache_dir": SettingDescription("Folder of logs and caches; safe to delete.", check=_check_not_empty),
    "engine": SettingDescription('Engine: "llama", or "fake" (random letters, 200 a second) for client development.'),
}
