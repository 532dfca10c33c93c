"""`localllm prune` deletes stale downloads and caches, `localllm forget` all that was said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.confirm import confirm_removal
from app.cli.options import BYTE_SIZE, options
from app.cli.output.format import format_bytes, print_json
from app.cli.resources import open_index
from app.common.terminal import printable_line
from app.settings.settings import load_settings
from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from app.library.local.removal import StaleFiles


@click.command(epilog="Example: localllm prune --dry-run")
@options("is_dry_run")
@click.option(
    "--keep-prefixes",
    "max_prefix_bytes",
    type=BYTE_SIZE,
    default="4GB",
    show_default=True,
    help="Keep this much of the saved prefixes and encoded pictures and sounds, newest first.",
)
@options("assume_yes", "wants_json")
def prune(max_prefix_bytes: int, *, is_dry_run: bool, assume_yes: bool, wants_json: bool) -> None:
    """Delete stale downloads, imports, quantizations, caches and attachments of deleted chats, after asking.

    Models, complete checkpoints and files that a running process is writing are kept. A checkpoint whose conversion
    was interrupted is deleted after a week.
    """
    from app.library.local.index import forget_missing
    from app.library.local.removal import delete_stale_files, find_stale_files

    settings = load_settings()
    with open_index(settings.cache_dir) as index:
        stale = find_stale_files(settings, max_prefix_bytes, lambda path: bool(index.sha256(path)))
    attachments = _unused_attachments(settings.data_dir)
    found = (*stale, *attachments)
    if not wants_json:
        _tell(found)
    if found and not is_dry_run:
        confirm_removal("Remove all of this?", assume_yes=assume_yes)
    gone = [] if is_dry_run else [leftover for leftover in stale if delete_stale_files(leftover)]
    if attachments and not is_dry_run:
        _remove_unused_attachments(settings.data_dir)
        gone += attachments
    with open_index(settings.cache_dir) as index:
        n_forgotten = 0 if is_dry_run else forget_missing(settings.models_dir, index)
    n_freed = sum(leftover.n_bytes for leftover in gone)
    if wants_json:
        items = [
            {
                "what": item.what,
                "detail": item.detail,
                "paths": [str(path) for path in item.paths],
                "bytes": item.n_bytes,
            }
            for item in found
        ]
        result = {"found": items, "bytes_freed": n_freed, "rows_forgotten": n_forgotten, "dry_run": is_dry_run}
        print_json(result)
    elif found and not is_dry_run:
        click.echo(f"Freed {format_bytes(n_freed)}.")


def _unused_attachments(data_dir: Path) -> tuple[StaleFiles, ...]:
    """Return the pictures and sounds that no chat and no draft has, and the contents of files that no chat can restore;
    none where there are no chats."""
    from app.chat.store.chat_store import FILE_NAME, ChatStore
    from app.library.local.removal import StaleFiles

    if not (data_dir / FILE_NAME).exists():
        return ()
    with ChatStore(data_dir) as store:
        found = {
            "unused attachments": store.files.unused(),
            "unused file contents": store.file_history.unused(store.messages.contents_of_changes()),
        }
    return tuple(StaleFiles(what, paths, n_bytes) for what, (paths, n_bytes) in found.items() if paths)


def _remove_unused_attachments(data_dir: Path) -> None:
    """Remove them, but for those that a chat took up meanwhile."""
    from app.chat.store.chat_store import ChatStore

    with ChatStore(data_dir) as store:
        store.files.remove_unused()
        store.files.remove_strays()
        store.file_history.remove_unused(store.messages.contents_of_changes())


def _tell(found: Sequence[StaleFiles]) -> None:
    if not found:
        click.echo("There is nothing to remove.")
    n_bytes: Counter[str] = Counter()
    for item in found:
        n_bytes[item.what] += item.n_bytes
    counts = Counter(item.what for item in found)
    for what, n in n_bytes.items():
        click.echo(f"{counts[what]:>4} × {what:<22} {format_bytes(n):>8}")
        for item in found:
            if item.what == what and item.detail:
                click.echo(f"       {printable_line(item.detail)}")


@click.command(epilog="Example: localllm forget --keep-chats --dry-run")
@click.option("--keep-chats", is_flag=True, help="Keep chats with drafts, attachments, undo and prompt history.")
@options("is_dry_run", "assume_yes", "wants_json")
def forget(*, keep_chats: bool, is_dry_run: bool, assume_yes: bool, wants_json: bool) -> None:
    """Delete all chats and everything derived from them, after asking.

    That includes drafts, attachments, former contents of files that tools changed, the prompt history, stored
    responses, saved prefixes, encoded pictures and sounds, logs and crash reports. Models, settings, presets, prompts
    and keys stay, and so do exports and importance matrices that you wrote elsewhere.
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
