"""`localllm pull`: a model from a hub or a URL, whole and checked, into the library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from app.cli.byte_sizes import byte_size_option
from app.terminal import printable

if TYPE_CHECKING:
    from app.library.download.events import Report

__all__ = ["pull"]

_LIMIT_HELP = "Take at most SIZE a second, such as 5MB."


@click.command()
@click.argument("reference", metavar="REF")
@click.option("--limit", "bytes_per_s", metavar="SIZE", callback=byte_size_option, help=_LIMIT_HELP)
@click.option("--connections", "n_connections", type=click.IntRange(1, 16), default=4, show_default=True)
@click.option("--overwrite", "is_overwriting", is_flag=True, help="Replace a file that is in the way.")
@click.option("--json", "wants_json", is_flag=True, help="Print what goes on as lines of JSON.")
def pull(reference: str, bytes_per_s: int, n_connections: int, is_overwriting: bool, wants_json: bool) -> None:
    """Fetch the model REF: org/repo, org/repo:Q4_K_M, org/repo/file.gguf, a URL, or a name of the catalogue.

    Without a quant, the best that runs well on this machine is taken. Ctrl-C keeps what came: the same command goes on
    from there. HF_TOKEN, HF_ENDPOINT and proxies are honoured.

    \b
    Example: localllm pull bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M
    """
    from app.library.catalogue import wanted_by
    from app.library.download.downloader import DownloadOptions
    from app.library.hub_access import access_here
    from app.library.index import Index
    from app.library.pull import Puller
    from app.library.quant_choice import choose_here
    from app.settings import load_settings

    settings, access = load_settings(), access_here()
    wanted = wanted_by(reference, access.endpoint)
    options = DownloadOptions(n_connections, bytes_per_s)
    choose = choose_here(settings, access)
    with Index(settings.cache_dir) as index, _shown(wants_json=wants_json) as report:
        puller = Puller(settings.models_dir, access, index, options, choose, report, is_overwriting)
        path = asyncio.run(puller.pull(wanted))
    if not wants_json:
        click.echo(printable(f"{path} is whole, and what the hub says it is. Run it: localllm run {path.stem}"))


@contextmanager
def _shown(*, wants_json: bool) -> Iterator[Report]:
    """Give what shows events: to programs all of them as JSON on stdout, to people a bar on stderr."""
    if wants_json:
        from app.library.download.events import encode_event

        yield lambda event: click.echo(json.dumps(encode_event(event)))
        return
    from app.cli.progress import DownloadProgress

    with DownloadProgress() as progress:
        yield progress.show
