"""`localllm forget`: delete all that holds or derives from what was said."""

from __future__ import annotations

import click

from app.cli.confirm import confirm_removal
from app.cli.options import options
from app.cli.output.format import format_bytes, print_json
from app.settings.settings import load_settings
from quantizer.system.errors import UsageError


@click.command(epilog="Example: localllm forget --keep-chats --dry-run")
@click.option("--keep-chats", is_flag=True, help="Keep chats, with their drafts, attachments, undo and prompt history.")
@options("is_dry_run", "assume_yes", "wants_json")
def forget(*, keep_chats: bool, is_dry_run: bool, assume_yes: bool, wants_json: bool) -> None:
    """Delete what was said and all that derives from it, after asking.

    That is chats, drafts, attachments, what tools replaced in files, prompt history, stored responses, saved prefixes,
    encoded pictures and sounds, logs and crash reports. Models, settings, presets, prompts and keys stay. Exports and
    importance matrices are where you wrote them.
    """
    from app.settings.private_files import ATTACHED, CHATS, REPLACED, find_private_files, remove_files, users_of

    settings = load_settings()
    kept = (CHATS, ATTACHED, REPLACED) if keep_chats else ()
    found = [files for files in find_private_files(settings) if files.what not in kept]
    n_bytes = sum(files.n_bytes for files in found)
    if not wants_json:
        for files in found:
            click.echo(f"{len(files.paths):>6} × {files.what:<33} {format_bytes(files.n_bytes):>8}")
        if not found:
            click.echo("There is nothing to forget.")
    if found and not is_dry_run:
        if users := users_of(settings):
            cause = f"localllm is running: process {', '.join(users)}."
            raise UsageError(cause, "Quit the app and stop `localllm serve`, then run this again.")
        confirm_removal("Remove all of this for good?", assume_yes=assume_yes)
        for files in found:
            remove_files(files)
    if wants_json:
        items = [{"what": files.what, "paths": [*map(str, files.paths)], "bytes": files.n_bytes} for files in found]
        print_json({"found": items, "bytes_freed": 0 if is_dry_run else n_bytes, "dry_run": is_dry_run})
    elif found and not is_dry_run:
        click.echo(f"Removed {sum(len(files.paths) for files in found)} files, {format_bytes(n_bytes)}.")
