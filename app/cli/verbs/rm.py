"""`localllm rm`: take models out of the library."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from app.cli.confirm import confirm_removal
from app.cli.options import complete_model, options
from app.cli.output.format import format_bytes, print_json
from app.cli.resources import open_index
from app.common.terminal import printable_line
from app.settings.settings import Settings, load_settings
from quantizer.system.errors import UserError

if TYPE_CHECKING:
    from app.protocol.library import RemovalResult


_ASKING_TIMEOUT_S = 2.0


@click.command(epilog="Example: localllm rm qwen3:0.6b-q8_0")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_model)
@options("assume_yes", "wants_json")
def rm(models: tuple[str, ...], *, assume_yes: bool, wants_json: bool) -> None:
    """Remove each MODEL from the library, all its files, after asking.

    Only files in the models folder are removed. For a linked model only the link is removed. A model that a running
    service has loaded is kept, unless you give --yes.
    """
    from app.library.local.removal import plan_removal, remove
    from app.library.local.resolve import resolve

    settings = load_settings()
    refs = {ref.path: ref for ref in (resolve(name, settings) for name in models)}
    paths = tuple(refs)
    removals = [plan_removal(ref, settings.models_dir, paths[:index]) for index, ref in enumerate(refs.values())]
    if not assume_yes:
        _check_unused([ref.id for ref in refs.values()], settings)
    listed = "".join(f"  {_described(removal)}\n" for removal in removals)
    confirm_removal(f"{listed}Remove it?", assume_yes=assume_yes)
    with open_index(settings.cache_dir) as index:
        for removal in removals:
            remove(removal, settings.models_dir)
            index.forget(removal.paths)
            if not wants_json:
                click.echo(f"Removed {_described(removal)}.")
    if wants_json:
        print_json({"removed": removals})


def _check_unused(ids: Sequence[str], settings: Settings) -> None:
    """Raise UserError when a running service has one of the models loaded."""
    from app.client.service_client import ServiceClient
    from app.common.keys import own_key

    async def loaded_ids() -> set[str]:
        async with ServiceClient(settings.url, own_key(settings)) as client, asyncio.timeout(_ASKING_TIMEOUT_S):
            models = (await client.status()).models
            return {model.id for model in models if model.state in ("loading", "ready")}

    try:
        loaded = sorted(asyncio.run(loaded_ids()).intersection(ids))
    except (UserError, TimeoutError, ValueError, KeyError, TypeError):  # none, or something else on its port
        return
    if loaded:
        cause = f"The service at {settings.url} has {', '.join(loaded)} loaded."
        raise UserError(cause, "End it, or give --yes to remove the file under it.")


def _described(removal: RemovalResult) -> str:
    n_bytes = removal.n_bytes_freed
    frees = f"frees {format_bytes(n_bytes)}" if n_bytes else "frees nothing: its bytes have another name"
    return f"{printable_line(removal.id)} ({frees})"
