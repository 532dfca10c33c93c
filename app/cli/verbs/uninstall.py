"""`localllm uninstall`: what stays on disk, its removal, and the command that removes the program itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.options import options
from app.cli.output.format import print_json
from app.cli.resources import confirm_removal
from app.common.terminal import format_bytes, printable, quoted_name
from app.settings.settings import Settings, load_settings
from quantizer.system.errors import UsageError, UserError
from quantizer.system.files import is_file

if TYPE_CHECKING:
    from app.settings.own_files import OwnFiles


@click.command(epilog="Example: localllm uninstall --keep-models")
@click.option("--keep-models", is_flag=True, help="Keep the models and checkpoints in the data folder.")
@options("is_dry_run", "assume_yes", "wants_json")
def uninstall(*, keep_models: bool, is_dry_run: bool, assume_yes: bool, wants_json: bool) -> None:
    """Remove models, chats, keys, settings, caches and the login service, after asking.

    Models of Ollama, LM Studio and Hugging Face stay, also where the library links to them, and so does what you wrote
    elsewhere. At the end it prints the command that removes the program.
    """
    from app.settings.own_files import MODELS, find_own_files
    from quantizer.system.installation import find_installation, removal_command

    settings = load_settings()
    found, shared = find_own_files(settings)
    if keep_models:
        found = tuple(files for files in found if files.what not in MODELS)
    unit, program = _login_unit(settings), removal_command(find_installation())
    if not wants_json:
        for files in found:
            click.echo(
                printable(f"{format_bytes(files.n_bytes):>9}  {files.what:<24} {quoted_name(str(files.folder))}")
            )
        if unit:
            click.echo(printable(f"{'':>9}  {'login service':<24} {quoted_name(str(unit))}"))
        for sentence in shared:
            click.echo(printable(sentence), err=True)
    if (found or unit) and not is_dry_run:
        confirm_removal("Remove all of this for good?", assume_yes=assume_yes)
        _remove(found, unit, settings)
    n_bytes = sum(files.n_bytes for files in found)
    if wants_json:
        items = [
            {"what": files.what, "folder": str(files.folder), "paths": [*map(str, files.paths)], "bytes": files.n_bytes}
            for files in found
        ]
        kept = {"login_service": str(unit) if unit else None, "kept": shared}
        print_json({"found": items, "bytes_freed": 0 if is_dry_run else n_bytes, **kept, "program": program})
        return
    freed = f"Removed {format_bytes(n_bytes)}." if found or unit else "Nothing of localllm is left on disk."
    if not is_dry_run or not found:
        click.echo(freed)
    click.echo(printable(f"To remove the program itself: {program}"))


def _login_unit(settings: Settings) -> Path | None:
    """Return the file of the service that starts when the user logs in; None where none is installed."""
    from app.client.login_service import login_service

    try:
        unit = login_service(settings).path
    except UserError:  # a system that starts no services
        return None
    return unit if is_file(unit) else None


def _remove(found: Sequence[OwnFiles], unit: Path | None, settings: Settings) -> None:
    """End what runs, then remove all of it. Raises UsageError while the app runs, StorageError."""
    from app.client.launcher import stop_services
    from app.client.login_service import login_service
    from app.client.login_service import remove as remove_service
    from app.settings.own_files import remove_own_files
    from app.settings.private_files import users_of

    if unit is not None:
        remove_service(login_service(settings))
    if users_of(settings):
        asyncio.run(stop_services(settings))
    if users := users_of(settings):
        raise UsageError(f"localllm is running: process {', '.join(users)}.", "Quit it, then run this again.")
    for files in found:
        remove_own_files(files)
