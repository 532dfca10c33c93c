"""Models for this machine: `localllm search` asks the hub, `localllm recommend` a catalogue that ships."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

import click

from app.cli.options import option, options
from app.cli.output.format import print_json, print_lines
from app.cli.resources import requested_planning_context
from app.protocol.library import HubModel, HubRepository, Recommendation, Recommendations, Recommended
from app.settings.settings import load_settings
from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from app.library.hub.access import HubAccess
    from app.library.machine_fit.planning import PlanningContext


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
    from app.library.hub.access import hub_access_from_environment
    from app.library.hub.search import list_repos

    if not words and not is_trending:
        raise UsageError("There are no words to search for.", "Name some, or pass --trending.")
    settings, access = load_settings(), hub_access_from_environment()
    # first: without a network it ends here, before any measuring
    listed = list_repos(access, " ".join(words), limit, is_trending=is_trending)
    here = requested_planning_context(settings, vram, ram)
    hits = asyncio.run(_inspect(listed, access, here))
    if only_fitting:
        hits = [hit for hit in map(_fitting, hits) if hit.models or hit.problem]
    if wants_json:
        print_json({"repositories": hits})
        return
    for hit in hits:
        print_lines(_lines(hit))
    if not hits:
        click.echo("Nothing was found.")


async def _inspect(listed: Sequence[HubRepository], access: HubAccess, here: PlanningContext) -> list[HubRepository]:
    from app.cli.output.progress import Meter
    from app.library.hub.search import inspect_repos

    with Meter("Reading headers", len(listed)) as meter:
        return await inspect_repos(listed, access, here, meter.advance)


def _fitting(hit: HubRepository) -> HubRepository:
    """Return the repository without quants that do not fit and without models that then have none."""
    kept = [
        replace(model, quants=tuple(quant for quant in model.quants if quant.fit.runs_well)) for model in hit.models
    ]
    return replace(hit, models=tuple(model for model in kept if model.quants))


def _lines(hit: HubRepository) -> Iterator[str]:
    facts = [f"{hit.n_downloads:,} downloads", hit.licence, "gated" if hit.is_gated else ""]
    facts.append("checkpoint, to be converted" if hit.is_checkpoint else "")
    yield f"{hit.repo}  {', '.join(fact for fact in facts if fact)}"
    for model in hit.models:
        yield from _model_lines(model)
    if hit.problem:
        yield f"  ! {hit.problem}"
    if hit.n_left_out:
        yield f"  and {hit.n_left_out} files of other models"


def _model_lines(model: HubModel) -> Iterator[str]:
    from app.cli.output.plan import format_fit
    from app.library.machine_fit.planning import choose_quant

    context = f", context {model.n_ctx_train:,}" if model.n_ctx_train else ""
    yield f"  {model.architecture}, {model.n_parameters / 1e9:.1f}B parameters{context}"
    best = choose_quant(model.quants, model.n_parameters)
    width = max(len(quant.name) for quant in model.quants)
    for quant in model.quants:
        mark = "  ← suits this machine best" if quant is best else ""
        size = f"{quant.n_bytes / 1e9:.2f} GB"
        yield f"    {quant.name.ljust(width)}  {size:>9}  {format_fit(quant.fit)}{mark}"


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


def _today() -> date:
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
    yield ""


def _described(model: Recommended) -> str:
    from app.cli.output.plan import format_fit

    size = f"{model.published}, {model.n_parameters / 1e9:.1f}B parameters, {model.quant.n_bytes / 1e9:.1f} GB"
    return f"{model.title} in {model.quant.name} ({size}): {format_fit(model.quant.fit)}"
