"""What each setting means to a person: one table for the settings screen and for whoever reads the settings.

Owns the words, and which values are refused before they are written. Names, types and defaults are in `app.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from quantizer.errors import UsageError

__all__ = ["MEANINGS", "Effect", "Meaning"]


def _check_duration(text: str) -> None:
    from app.durations import seconds_of

    seconds_of(text)


def _check_byte_size(text: str) -> None:
    from app.byte_size import parse_byte_size

    if text:
        parse_byte_size(text)


def _check_kv_types(text: str) -> None:
    from offload.kv_cache import parse_kv_types

    parse_kv_types(text)


def _check_rpc(text: str) -> None:
    from app.rpc_endpoints import endpoints_of

    endpoints_of(text)


def _check_not_empty(text: str) -> None:
    if not text.strip():
        raise UsageError("This cannot be empty.", "Reset it to get the default.")


class Effect(Enum):
    """When another value of a setting is obeyed; the text says it."""

    AT_ONCE = "Takes effect at once"
    AT_LOAD = "Takes effect when a model is loaded with it, else at the next start of app and service"
    AT_START = "Takes effect at the next start of app and service"


@dataclass(frozen=True, slots=True)
class Meaning:
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


MEANINGS: Mapping[str, Meaning] = {
    "model": Meaning("The default model: guide, a name in the library, or a path to a GGUF.", check=_check_not_empty),
    "ctx": Meaning("Tokens of context; 0: chosen from the model and free memory.", effect=Effect.AT_LOAD),
    "kv_type": Meaning(
        "What the KV cache stores: TYPE or K_TYPE,V_TYPE, such as q8_0.", check=_check_kv_types, effect=Effect.AT_LOAD
    ),
    "context_shift": Meaning(
        "Answers that fill the context go on, and forget the oldest tokens.", effect=Effect.AT_LOAD
    ),
    "threads": Meaning("Threads that compute; 0: as many as are fastest here.", most=512, effect=Effect.AT_LOAD),
    "parallel": Meaning("How many answers are made at once.", least=1, most=256, effect=Effect.AT_LOAD),
    "keep_alive": Meaning(
        "How long an idle model stays that a request has loaded: 90s, 1h, -1 for good, 0 not.", check=_check_duration
    ),
    "max_memory": Meaning(
        "Main memory that all models may take together, such as 12GiB; empty: what there is.", check=_check_byte_size
    ),
    "when_unfit": Meaning(
        "What is done with a model that fits only in part: warn, ask first, or load it without a word.",
        choices=("warn", "ask", "load"),
    ),
    "draft": Meaning("A small model with the same vocabulary that drafts for the default model."),
    "lora": Meaning("Adapters of the default model, each FILE or FILE=NAME."),
    "control_vector": Meaning("Directions added in the default model, each FILE or FILE=SCALE."),
    "gpu": Meaning("Use what GPUs there are; without, everything is the processor's."),
    "rpc": Meaning(
        "llama.cpp RPC servers whose devices are used too, host:port, separated by commas.", check=_check_rpc
    ),
    "idle_tune": Meaning("Measure in quiet moments how a model that is new here runs fastest."),
    "anticipate": Meaning("Compute in quiet moments what the next turn of a chat is sure to begin with."),
    "host": Meaning("The address where the service listens; beyond this machine it asks for a key."),
    "port": Meaning("The port of the service; 0: any that is free.", most=65_535),
    "also": Meaning("Listen on the ports of Ollama, LM Studio and llama.cpp too, where those are free."),
    "api_key": Meaning("The key that the service asks for, or that an engine elsewhere wants.", is_secret=True),
    "origins": Meaning("Web pages that may use the service, such as http://localhost:3000, separated by commas."),
    "access_log": Meaning("A line on stderr for each request: route, status, time, model, tokens; never a prompt."),
    "connect": Meaning("The address of an engine elsewhere to chat with, instead of a service of this machine."),
    "jobs_at_exit": Meaning(
        "What becomes of running jobs when the app is left; where its terminal is closed, ask means go-on.",
        choices=("ask", "go-on", "stop"),
        effect=Effect.AT_ONCE,
    ),
    "theme": Meaning(
        "The colours of the terminal app; NO_COLOR in the environment takes them away.", effect=Effect.AT_ONCE
    ),
    "keys": Meaning(
        "Other keys for commands of the terminal app: COMMAND=KEY[,KEY], separated by spaces.", effect=Effect.AT_ONCE
    ),
    "data_dir": Meaning("The folder of models, chats and keys.", check=_check_not_empty),
    "cache_dir": Meaning("The folder of logs and of what can be made again.", check=_check_not_empty),
    "engine": Meaning('What runs models: "llama", or "fake" for working on clients: random letters at 200 a second.'),
}
