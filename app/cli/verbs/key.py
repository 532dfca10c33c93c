"""`localllm key`: the keys that programs on other machines send to the service."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from app.cli.options import options
from app.terminal import printable_line

if TYPE_CHECKING:
    from app.keys import Key, KeyFile

__all__ = ["key"]

_FIRST = "first"
_SCOPES = ("infer", "manage")
_MAX_NAME_CHARACTERS = 64


@click.group(invoke_without_command=True, epilog="Example: localllm key new laptop --scope infer")
@options("wants_json")
@click.pass_context
def key(context: click.Context, *, wants_json: bool) -> None:
    """Print the key of this machine, made the first time, which may do everything.

    `localllm serve --host ADDRESS` lets in whoever sends one of the keys, as a Bearer token or x-api-key. On this
    machine alone none is needed, unless --api-key sets one. They lie in a file that only you can read.
    """
    if context.invoked_subcommand is None:
        first = _keys().first(_FIRST)
        click.echo(json.dumps(_as_json(first)) if wants_json else first.secret)


@key.command("list")
@options("wants_json")
def list_keys(*, wants_json: bool) -> None:
    """List the keys: their names, what they may do, when they were made; with --json themselves too."""
    keys = _keys().known()
    if wants_json:
        click.echo(json.dumps({"keys": [_as_json(item) for item in keys]}))
        return
    width = max((len(printable_line(item.name)) for item in keys), default=0)
    for item in keys:
        scopes = ",".join(sorted(item.scopes))
        click.echo(f"{printable_line(item.name):<{width}}  {scopes:<12}  {_made(item)[:10]}")


@key.command()
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice(_SCOPES), help="What it may do; repeatable.  [default: infer]"
)
@options("wants_json")
def new(name: str, scopes: tuple[str, ...], *, wants_json: bool) -> None:
    """Make a key called NAME and print it.

    infer asks models; manage loads, fetches and removes them. A service that runs takes it at once.
    """
    from app.keys import KeyScope
    from quantizer.errors import UsageError

    if not name.strip() or len(name) > _MAX_NAME_CHARACTERS or name != printable_line(name):
        raise UsageError(f"{printable_line(name)!r} is no name for a key.", "Give one of at most 64 characters.")
    made = _keys().add(name, map(KeyScope, scopes or ("infer",)))
    click.echo(json.dumps(_as_json(made)) if wants_json else made.secret)


@key.command()
@click.argument("name")
@options("wants_json")
def remove(name: str, *, wants_json: bool) -> None:
    """Remove the key called NAME. A service that runs lets it in no more."""
    _keys().remove(name)
    click.echo(json.dumps({"removed": name}) if wants_json else f"Removed {printable_line(name)}.")


def _keys() -> KeyFile:
    from app.keys import key_file
    from app.settings.settings import load_settings

    return key_file(load_settings())


def _as_json(item: Key) -> dict[str, object]:
    return {"name": item.name, "key": item.secret, "scopes": sorted(item.scopes), "made_at": _made(item)}


def _made(item: Key) -> str:
    return datetime.fromtimestamp(item.made_s, UTC).isoformat()
