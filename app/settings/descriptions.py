"""What each setting means to a person: one table for the settings screen and for whoever reads the settings.

Owns the words, and which values are refused before they are written. Names, types and defaults are in `app.settings.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from quantizer.errors import UsageError

__all__ = ["DESCRIPTIONS", "Effect", "SettingDescription"]


def _check_duration(text: str) -> None:
    from app.settings.parsing import parse_duration

    parse_duration(text)


def _check_byte_size(text: str) -> None:
    from app.settings.parsing import parse_byte_size

    if text:
        parse_byte_size(text)


def _check_kv_types(text: str) -> None:
    from offload.footprint.kv_cache import parse_kv_types

    parse_kv_types(text)


def _check_rpc(text: str) -> None:
    from app.settings.parsing import parse_rpc_endpoints

    parse_rpc_endpoints(text)


def _check_not_empty(text: str) -> None:
    if not text.strip():
        raise UsageError("This cannot be empty.", "Reset it to get the default.")


class Effect(Enum):
    """When another value of a setting is obeyed; the text says it."""

    AT_ONCE = "Takes effect at once"
    AT_LOAD = "Takes effect when a model is loaded with it, else at the next start of app and service"
    AT_START = "Takes effect at the next start of app and service"


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """A setting in words. `choices` are all texts that it takes, empty where those are many; a number lies between
    `least` and `most`; `check` raises UserError for a text that would be refused later.

    `effect` tells when another value is obeyed. `is_secret`: not to be shown.
    """

    text: str
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = 2**31 - 1
    check: Callable[[str], None] | None = None
    effect: Effect = Effect.AT_START
    is_secret: bool = False


DESCRIPTIONS: Mapping[str, SettingDescription] = {
    "model": SettingDescription(
        "The default model: guide, a name in the library, or a path to a GGUF.", check=_check_not_empty
    ),
    "ctx": SettingDescription("Tokens of context; 0: chosen from the model and free memory.", effect=Effect.AT_LOAD),
    "kv_type": SettingDescription(
        "What the KV cache stores: TYPE or K_TYPE,V_TYPE, such as q8_0.", check=_check_kv_types, effect=Effect.AT_LOAD
    ),
    "context_shift": SettingDescription(
        "Answers that fill the context go on, and forget the oldest tokens.", effect=Effect.AT_LOAD
    ),
    "threads": SettingDescription(
        "Threads that compute; 0: as many as are fastest here.", most=512, effect=Effect.AT_LOAD
    ),
    "parallel": SettingDescription("How many answers are made at once.", least=1, most=256, effect=Effect.AT_LOAD),
    "keep_alive": SettingDescription(
        "How long an idle model stays that a request has loaded: 90s, 1h, -1 for good, 0 not.", check=_check_duration
    ),
    "max_memory": SettingDescription(
        "Main memory that all models may take together, such as 12GiB; empty: what there is.", check=_check_byte_size
    ),
    "when_unfit": SettingDescription(
        "What is done with a model that fits only in part: warn, ask first, or load it without a word.",
        choices=("warn", "ask", "load"),
    ),
    "draft": SettingDescription("A small model with the same vocabulary that drafts for the default model."),
    "lora": SettingDescription("Adapters of the default model, each FILE or FILE=NAME."),
    "control_vector": SettingDescription("Directions added in the default model, each FILE or FILE=SCALE."),
    "gpu": SettingDescription("Use what GPUs there are; without, everything is the processor's."),
    "rpc": SettingDescription(
        "llama.cpp RPC servers whose devices are used too, host:port, separated by commas.", check=_check_rpc
    ),
    "idle_tune": SettingDescription("Measure in quiet moments how a model that is new here runs fastest."),
    "anticipate": SettingDescription("Compute in quiet moments what the next turn of a chat is sure to begin with."),
    "host": SettingDescription("The address where the service listens; beyond this machine it asks for a key."),
    "port": SettingDescription("The port of the service; 0: any that is free.", most=65_535),
    "also": SettingDescription("Listen on the ports of Ollama, LM Studio and llama.cpp too, where those are free."),
    "api_key": SettingDescription(
        "The key that the service asks for, or that an engine elsewhere wants.", is_secret=True
    ),
    "origins": SettingDescription(
        "Web pages that may use the service, such as http://localhost:3000, separated by commas."
    ),
    "access_log": SettingDescription(
        "A line on stderr for each request: route, status, time, model, tokens; never a prompt."
    ),
    "connect": SettingDescription(
        "The address of an engine elsewhere to chat with, instead of a service of this machine."
    ),
    "jobs_at_exit": SettingDescription(
        "What becomes of running jobs when the app is left; where its terminal is closed, ask means go-on.",
        choices=("ask", "go-on", "stop"),
        effect=Effect.AT_ONCE,
    ),
    "theme": SettingDescription(
        "The colours of the terminal app; NO_COLOR in the environment takes them away.", effect=Effect.AT_ONCE
    ),
    "keys": SettingDescription(
        "Other keys for commands of the terminal app: COMMAND=KEY[,KEY], separated by spaces.", effect=Effect.AT_ONCE
    ),
    "data_dir": SettingDescription("The folder of models, chats and keys.", check=_check_not_empty),
    "cache_dir": SettingDescription("The folder of logs and of what can be made again.", check=_check_not_empty),
    "engine": SettingDescription(
        'What runs models: "llama", or "fake" for working on clients: random letters at 200 a second.'
    ),
}
