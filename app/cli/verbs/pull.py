"""`localllm pull`: download a model from a hub or a URL into the library."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.options import options, options_of
from app.cli.output.format import print_json
from app.common.terminal import printable
from app.options.jobs import PullOptions
from app.settings.settings import Settings, load_settings
from quantizer.gguf.file_names import NO_PROJECTOR, PROJECTOR_TYPES
from quantizer.system.errors import StorageError, UsageError

if TYPE_CHECKING:
    from app.library.download.events import Event, Report
    from app.library.hub.reference import Reference
    from app.library.pulling.puller import Puller


@click.command(epilog="Example: localllm pull bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M")
@options_of(PullOptions)
@options("wants_json")
def pull(options: PullOptions, *, wants_json: bool) -> None:
    """Download the model REF: org/repo, org/repo:Q4_K_M, org/repo/file.gguf, a URL, or a name from the catalogue.

    Without a quant, the best one that runs well on this machine is chosen. A draft head in the repository (dspark-,
    dflash- or eagle3- in its name), which speeds up answers, and a vision/audio projector (mmproj) are downloaded with
    the model. Ctrl-C keeps what was downloaded; the same command resumes. HF_TOKEN, HF_ENDPOINT and proxies are
    honoured.
    """
    from app.library.download.downloader import DownloadOptions
    from app.library.hub.access import hub_access_from_environment
    from app.library.hub.catalogue import resolve_reference
    from app.library.hub.selection import quant_chooser
    from app.library.local.index import Index
    from app.library.local.resolve import resolve
    from app.library.machine_fit.planning import local_planning_context
    from app.library.pulling.puller import Puller, plan_model_pull

    settings, access = load_settings(), hub_access_from_environment()
    wanted = resolve_reference(options.reference, access.endpoint)
    file_type, projector = options.quantize, options.projector
    if options.remove_checkpoint and not file_type:
        raise UsageError("--remove-checkpoint needs --quantize.", "Give --quantize TYPE too.")
    if file_type and projector and projector not in (*PROJECTOR_TYPES, NO_PROJECTOR):
        raise UsageError(f"No projector is made as {projector}.", f"Use {', '.join(PROJECTOR_TYPES)} or none.")
    added: list[str] = []
    with Index(settings.cache_dir) as index, _shown(added, wants_json=wants_json) as report:
        download = DownloadOptions(options.connections, options.limit_bytes_per_s)
        puller = Puller(access, index, download, report, options.overwrite)
        if file_type:
            path, made = asyncio.run(_pull_checkpoint(puller, wanted, options, settings))
            if wants_json:
                print_json({"event": "quantized", **made})
        else:
            choose = quant_chooser(access, lambda: local_planning_context(settings))
            plan = partial(plan_model_pull, with_head=not options.no_head, projector=projector)
            path = asyncio.run(puller.pull(lambda at: plan(at, wanted, settings.models_dir, choose)))
    if not wants_json:
        beside = "".join(f" {sentence}" for sentence in added)
        click.echo(printable(f"{path} is complete.{beside} Run it: localllm run {resolve(str(path), settings).id}"))


async def _pull_checkpoint(
    puller: Puller, wanted: Reference, options: PullOptions, settings: Settings
) -> tuple[Path, dict[str, object]]:
    """Download a checkpoint into `<data>/checkpoints` and convert it to a GGUF in the library.

    Return the path of the GGUF, and the result as `localllm quantize --json` prints it. Raises UserError.
    """
    from app.cli.verbs.quantize import note
    from app.library.hub.reference import RepoReference
    from app.library.pulling.checkpoint import CheckpointPuller, check_free
    from app.library.pulling.puller import plan_checkpoint_pull
    from quantizer.gguf.tensor_types import file_type_named
    from quantizer.write.job import JobRequest

    if not isinstance(wanted, RepoReference) or wanted.quant:
        raise UsageError("--quantize needs a checkpoint.", "Name its repository, org/repo.")
    kind = file_type_named(options.quantize)
    folder = settings.data_dir / "checkpoints" / wanted.repo
    output = settings.models_dir / wanted.repo / f"{wanted.repo.rpartition('/')[2]}-{kind.name}.gguf"
    check_free(folder, output, is_overwriting=puller.is_overwriting)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{output.parent} cannot be created: {error.strerror}.", "Check the disk.") from error
    made: dict[str, object] = {"output": str(output)}
    request = JobRequest(
        str(folder), kind.name, str(output), os.cpu_count() or 1, puller.is_overwriting, projector=options.projector
    )
    converting = CheckpointPuller(puller, request, options.remove_checkpoint, lambda event: note(event, made))
    await converting.pull(lambda session: plan_checkpoint_pull(session, wanted.repo, folder, kind))
    return output, made


@contextmanager
def _shown(added: list[str], *, wants_json: bool) -> Iterator[Report]:
    """Yield the consumer of events: JSON on stdout, or a bar on stderr. `added` receives what came with the model."""
    if wants_json:
        from app.library.download.events import encode_event

        yield lambda event: print_json(encode_event(event))
        return
    from app.cli.output.progress import DownloadProgress
    from app.library.download.events import HeadAdded, ProjectorAdded

    with DownloadProgress() as progress:

        def show(event: Event) -> None:
            if isinstance(event, HeadAdded):
                added.append(f"{Path(event.path).name} drafts for it.")
            if isinstance(event, ProjectorAdded):
                added.append(f"{Path(event.path).name} lets it see or hear.")
            progress.show(event)

        yield show
