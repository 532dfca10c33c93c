"""`localllm pull`: download a model from a hub or a URL into the library."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from app.cli.options import BYTE_SIZE, options
from app.cli.output.format import print_json
from app.settings.settings import load_settings
from app.terminal import printable
from quantizer.errors import UsageError

if TYPE_CHECKING:
    from app.library.download.events import Report

__all__ = ["pull"]


@click.command(epilog="Example: localllm pull bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M")
@click.argument("reference", metavar="REF")
@click.option(
    "--quantize", "file_type", metavar="TYPE", default="", help="Convert the checkpoint REF to a GGUF of TYPE."
)
@click.option("--remove-checkpoint", "is_removing", is_flag=True, help="Remove checkpoint files once converted.")
@click.option("--limit-rate", "bytes_per_s", type=BYTE_SIZE, default=0, help="Bytes per second at most, such as 5MB.")
@click.option("--connections", "n_connections", type=click.IntRange(1, 16), default=4, show_default=True)
@options("is_overwriting", "wants_json")
def pull(
    reference: str,
    file_type: str,
    is_removing: bool,
    bytes_per_s: int,
    n_connections: int,
    is_overwriting: bool,
    wants_json: bool,
) -> None:
    """Download the model REF: org/repo, org/repo:Q4_K_M, org/repo/file.gguf, a URL, or a name of the catalogue.

    Without a quant, the best one that runs well on this machine is chosen. Ctrl-C keeps what was downloaded: the same
    command resumes. HF_TOKEN, HF_ENDPOINT and proxies are honoured.
    """
    from app.library.download.downloader import DownloadOptions
    from app.library.hub.access import hub_access_from_environment
    from app.library.hub.catalogue import resolve_reference
    from app.library.hub.selection import local_quant_chooser
    from app.library.local.index import Index
    from app.library.pulling.puller import Puller, plan_model_pull

    settings, access = load_settings(), hub_access_from_environment()
    wanted = resolve_reference(reference, access.endpoint)
    if is_removing and not file_type:
        raise UsageError("--remove-checkpoint needs --quantize.", "Give --quantize TYPE too.")
    checkpoint = None
    if file_type:  # else the converter is not imported
        from app.cli.quantization.pull_checkpoint import CheckpointPull

        checkpoint = CheckpointPull.of(
            wanted, file_type, settings, is_overwriting=is_overwriting, is_removing=is_removing
        )
    choose = local_quant_chooser(settings, access)
    with Index(settings.cache_dir) as index, _shown(wants_json=wants_json) as report:
        puller = Puller(access, index, DownloadOptions(n_connections, bytes_per_s), report, is_overwriting)
        if checkpoint is None:
            path = asyncio.run(puller.pull(lambda at: plan_model_pull(at, wanted, settings.models_dir, choose)))
        else:
            path, made = checkpoint.output, asyncio.run(checkpoint.make(puller))
    if checkpoint is not None and wants_json:
        print_json({"event": "quantized", **made})
    if not wants_json:
        click.echo(printable(f"{path} is complete. Run it: localllm run {path.stem}"))


@contextmanager
def _shown(*, wants_json: bool) -> Iterator[Report]:
    """Yield the consumer of events: JSON on stdout, or a bar on stderr."""
    if wants_json:
        from app.library.download.events import encode_event

        yield lambda event: print_json(encode_event(event))
        return
    from app.cli.output.progress import DownloadProgress

    with DownloadProgress() as progress:
        yield progress.show
