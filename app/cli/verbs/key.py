"""`localllm key`: the API keys of the service."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from app.cli.options import options
from app.cli.output.format import print_json
from app.common.terminal import printable_line
from app.settings.settings import load_settings

if TYPE_CHECKING:
    from app.common.keys import Key, KeyFile


_FIRST = "first"
_SCOPES = ("infer", "manage")
_MAX_NAME_CHARACTERS = 64


@click.group(invoke_without_command=True, epilog="Example: localllm key new laptop --scope infer")
@options("wants_json")
@click.pass_context
def key(context: click.Context, *, wants_json: bool) -> None:
    """Print the API key of this machine, which has all permissions; it is created the first time.

    `localllm serve --host ADDRESS` accepts these keys, as a Bearer token or x-api-key. Clients on this machine need
    none, unless --api-key sets one. The keys are stored in a file that only you can read. With --json a key comes in
    the form of LM Studio's API tokens too, the only one that its SDKs send.
    """
    if context.invoked_subcommand is None:
        first = _keys().first(_FIRST)
        if wants_json:
            print_json(_as_json(first))
        else:
            click.echo(first.secret)


@key.command("list")
@options("wants_json")
def list_keys(*, wants_json: bool) -> None:
    """List the keys: name, scopes and creation date; with --json the keys too."""
    keys = _keys().known()
    if wants_json:
        print_json({"keys": [_as_json(item) for item in keys]})
        return
    width = max((len(printable_line(item.name)) for item in keys), default=0)
    for item in keys:
        scopes = ",".join(sorted(item.scopes))
        click.echo(f"{printable_line(item.name):<{width}}  {scopes:<12}  {_made(item)[:10]}")


@key.command()
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice(_SCOPES), help="Permission; repeatable.  [default: infer]"
)
@options("wants_json")
def new(name: str, scopes: tuple[str, ...], *, wants_json: bool) -> None:
    """Create a key called NAME and print it.

    infer: use models. manage: load, download and remove them. A running service accepts the key at once.
    """
    from app.common.keys import KeyScope
    from quantizer.system.errors import UsageError

    if not name.strip() or len(name) > _MAX_NAME_CHARACTERS or name != printable_line(name):
        raise UsageError(f"{printable_line(name)!r} is not a valid name.", "Give one of at most 64 characters.")
    made = _keys().add(name, map(KeyScope, scopes or ("infer",)))
    if wants_json:
        print_json(_as_json(made))
    else:
        click.echo(made.secret)


@key.command()
@click.argument("name")
@options("wants_json")
def remove(name: str, *, wants_json: bool) -> None:
    """Remove the key called NAME. A running service rejects it at once."""
    _keys().remove(name)
    if wants_json:
        print_json({"removed": name})
    else:
        click.echo(f"Removed {printable_line(name)}.")


def _keys() -> KeyFile:
    from app.common.keys import key_file

    return key_file(load_settings())


def _as_json(item: Key) -> dict[str, object]:
    from app.common.keys import lmstudio_token

    return {
        "name": item.name,
        "key": item.secret,
        "lmstudio_token": lmstudio_token(item.secret),
        "scopes": sorted(item.scopes),
        "made_at": _made(item),
    }


def _made(item: Key) -> str:
    return datetime.fromtimestamp(item.made_s, UTC).isoformat()
