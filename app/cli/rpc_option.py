"""`--rpc HOST:PORT`, for every command that plans or loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from app.engine.rpc import endpoints_of, exposure
from app.settings import Settings

__all__ = ["rpc_option", "told_endpoints"]

_Command = TypeVar("_Command", bound=Callable[..., None])


def rpc_option(command: _Command) -> _Command:
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


def told_endpoints(settings: Settings) -> tuple[str, ...]:
    """Return the RPC servers of `settings`, and say on stderr what they leave open. Raises UsageError."""
    endpoints = endpoints_of(settings.rpc)
    if said := exposure(endpoints):
        click.echo(said, err=True)
    return endpoints
