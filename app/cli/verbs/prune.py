"""`localllm prune`: give the disk back what nobody needs any more."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from app.cli.confirm import confirm_removal, yes_option
from app.cli.index import open_index
from app.cli.options import byte_size_option
from app.cli.output.format import format_bytes
from app.terminal import printable_line

if TYPE_CHECKING:
    from app.library.local.stale_files import StaleFiles

__all__ = ["prune"]


@click.command(epilog="Example: localllm prune --dry-run")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only say what would go.")
@click.option(
    "--keep-prefixes",
    "max_prefix_bytes",
    callback=byte_size_option,
    default="4GB",
    show_default=True,
    metavar="SIZE",
    help="How much to keep of the conversations that are saved for the next start; the latest stay.",
)
@yes_option
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
def prune(max_prefix_bytes: int, *, is_dry: bool, assume_yes: bool, wants_json: bool) -> None:
    """Remove what interrupted downloads, imports and quantizations left, and old caches, after asking.

    No model goes, and nothing that a running process writes. A checkpoint whose conversion was interrupted goes once
    nobody went on with it for a week; one that came whole stays.
    """
    from app.library.local.index import forget_missing
    from app.library.local.stale_files import delete_stale_files, find_stale_files
    from app.settings.settings import load_settings

    settings = load_settings()
    with open_index(settings.cache_dir) as index:
        found = find_stale_files(settings, max_prefix_bytes, lambda path: bool(index.sha256(path)))
    if not wants_json:
        _tell(found)
    if found and not is_dry:
        confirm_removal("Remove all that?", assume_yes=assume_yes)
    gone = [] if is_dry else [leftover for leftover in found if delete_stale_files(leftover)]
    with open_index(settings.cache_dir) as index:
        n_forgotten = 0 if is_dry else forget_missing(settings.models_dir, index)
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
        result = {"found": items, "bytes_freed": n_freed, "rows_forgotten": n_forgotten, "dry_run": is_dry}
        click.echo(json.dumps(result))
    elif found and not is_dry:
        click.echo(f"Freed {format_bytes(n_freed)}.")


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
