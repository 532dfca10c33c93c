"""Options of the verbs that ask a model: how it answers, what it needs of the machine, and where it is.

Owns their names and what they mean as settings. What is asked belongs to the verbs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import click

from app.cli.consent import with_consent
from app.cli.rpc_option import rpc_option
from app.loopback import is_loopback
from app.settings import Settings, load_settings

__all__ = ["asked_settings", "asking_options"]

_FILE_ENDING = ".gguf"
_Command = TypeVar("_Command", bound=Callable[..., None])


def _finite(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no temperature.")
    return value


_OPTIONS = (
    click.option("--system", help="System prompt."),
    click.option("--max-tokens", type=click.IntRange(min=1), help="Longest answer, in tokens."),
    click.option(
        "--temp", "temperature", type=float, callback=_finite, help="Temperature; 0 always takes the likeliest token."
    ),
    click.option("--seed", type=int, help="The same seed and question give the same answer."),
    click.option("--ctx", type=click.IntRange(min=0), help="Tokens of context; 0 lets localllm choose."),
    click.option(
        "--kv-type", help="What the KV cache stores, TYPE or K_TYPE,V_TYPE: f16, q8_0, q4_0 ...  [default: f16]"
    ),
    rpc_option,
    click.option("--gpu/--no-gpu", default=None, help="Whether GPUs are used.  [default: --gpu]"),
    click.option(
        "--yes", "is_agreed", is_flag=True, help="Load the model even where it fits only in part, or not at all."
    ),
    click.option("--threads", type=click.IntRange(min=0), help="CPU threads; 0 lets localllm choose."),
    click.option("--host", help="Where a service may run already.  [default: 127.0.0.1]"),
    click.option("--port", type=click.IntRange(0, 65535), help="Its port.  [default: 11500]"),
    click.option("--connect", metavar="URL", help="Ask another localllm, or any OpenAI-compatible engine."),
    click.option("--key", "api_key", help="The key that it needs; LOCALLLM_API_KEY is seen by fewer."),
    click.option("--stats", is_flag=True, help="Print times and rates to stderr."),
)


def asking_options(command: _Command) -> _Command:
    """Give `command` `system`, `max_tokens`, `temperature`, `seed`, `is_agreed` and `stats`, and settings by their
    names, None where one is not given."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def asked_settings(model: str | None, flags: Mapping[str, object], *, is_agreed: bool) -> Settings:
    """Return the settings in force; an engine elsewhere chooses the model where none is named: it may have no guide.

    Raises UsageError, and ModelFileError for a file that is not there: who mistyped it need not wait for a service.
    """
    chosen = model or ("" if flags["connect"] else None)
    settings = load_settings({**flags, "model": chosen})
    if settings.model.endswith(_FILE_ENDING) and not settings.connect and is_loopback(settings.host):
        from app.library.resolve import resolve

        resolve(settings.model, settings)
    return with_consent(settings, is_agreed=is_agreed, may_ask=True)
