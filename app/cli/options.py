"""What the shell offers for an argument: the names of models. Fast, for it runs at every press of Tab.

Sizes as people write them on the command line: 500M, 4.2GB, 2GiB.

`--rpc HOST:PORT`, for every command that plans or loads.

Options of the verbs that ask a model: how it answers, what it needs of the machine, and where it is.

Owns their names and what they mean as settings. What is asked belongs to the verbs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from app.cli.confirm import with_unfit_policy
from app.engine.load.rpc import exposure_warning
from app.settings.parsing import is_loopback, parse_byte_size, parse_rpc_endpoints
from app.settings.settings import Settings, load_settings
from app.terminal import printable_line

__all__ = [
    "announced_rpc_endpoints",
    "byte_size_option",
    "complete_model",
    "generation_options",
    "resolve_settings",
    "rpc_option",
]


def complete_model(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the models of the library that begin with `begun`, or let the shell offer files where none does.

    A name that a terminal would obey is not offered.
    """
    from app.library.local.resolve import available
    from app.settings.settings import load_settings

    names = [ref.id for ref in available(load_settings()) if ref.id == printable_line(ref.id)]
    offered = [CompletionItem(name) for name in names if name.lower().startswith(begun.lower())]
    return offered or [CompletionItem(begun, type="file")]


def byte_size_option(_context: click.Context, _option: click.Parameter, text: str | None) -> int:
    """Callback of an option: its size in bytes, 0 when it was not given."""
    return 0 if text is None else parse_byte_size(text)


_RpcCommand = TypeVar("_RpcCommand", bound=Callable[..., None])


def rpc_option(command: _RpcCommand) -> _RpcCommand:
    """Give `command` a `rpc`: what the setting of that name takes, None where it is not given."""
    return click.option(
        "--rpc",
        multiple=True,
        metavar="HOST:PORT",
        callback=_joined,
        help="Use the devices of a llama.cpp RPC server too; repeatable. Nothing on that way is checked or encrypted.",
    )(command)


def _joined(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> str | None:
    return ",".join(values) or None


def announced_rpc_endpoints(settings: Settings) -> tuple[str, ...]:
    """Return the RPC servers of `settings`, and say on stderr what they leave open. Raises UsageError."""
    endpoints = parse_rpc_endpoints(settings.rpc)
    if said := exposure_warning(endpoints):
        click.echo(said, err=True)
    return endpoints


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
        "--yes", "assume_yes", is_flag=True, help="Load the model even where it fits only in part, or not at all."
    ),
    click.option("--threads", type=click.IntRange(min=0), help="CPU threads; 0 lets localllm choose."),
    click.option("--host", help="Where a service may run already.  [default: 127.0.0.1]"),
    click.option("--port", type=click.IntRange(0, 65535), help="Its port.  [default: 11500]"),
    click.option("--connect", metavar="URL", help="Ask another localllm, or any OpenAI-compatible engine."),
    click.option("--key", "api_key", help="The key that it needs; LOCALLLM_API_KEY is seen by fewer."),
    click.option("--stats", is_flag=True, help="Print times and rates to stderr."),
)


def generation_options(command: _Command) -> _Command:
    """Give `command` `system`, `max_tokens`, `temperature`, `seed`, `assume_yes` and `stats`, and settings by their
    names, None where one is not given."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def resolve_settings(model: str | None, flags: Mapping[str, object], *, assume_yes: bool) -> Settings:
    """Return the settings in force; an engine elsewhere chooses the model where none is named: it may have no guide.

    Raises UsageError, and ModelFileError for a file that is not there: who mistyped it need not wait for a service.
    """
    chosen = model or ("" if flags["connect"] else None)
    settings = load_settings({**flags, "model": chosen})
    if settings.model.endswith(_FILE_ENDING) and not settings.connect and is_loopback(settings.host):
        from app.library.local.resolve import resolve

        resolve(settings.model, settings)
    return with_unfit_policy(settings, assume_yes=assume_yes, may_ask=True)
