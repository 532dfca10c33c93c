"""`localllm search`: models of the hub, each quant with what it would come to on this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from app.cli.options import option, options
from app.protocol.codec import encode
from app.terminal import printable

if TYPE_CHECKING:
    from app.library.hub.access import HubAccess
    from app.library.hub.repo_list import ListedRepo
    from app.library.hub.search import Family, SearchHit
    from app.library.machine_fit.planning import PlanningContext

__all__ = ["search"]


@click.command(epilog="Example: localllm search qwen3 coder --fits")
@click.argument("words", nargs=-1, required=True)
@click.option("--fits", "only_fitting", is_flag=True, help="Hide models that do not fit this machine.")
@option("limit", type=click.IntRange(1, 100), default=10)
@options("vram", "ram", "wants_json")
def search(
    words: tuple[str, ...], only_fitting: bool, limit: int, vram: tuple[str, ...], ram: str | None, wants_json: bool
) -> None:
    """Search the hub for models whose names contain all WORDS, with each quant's fit and speed on this machine.

    GGUF repositories come first, then checkpoints that can be converted. One header of some megabytes is read per
    model, no weights. HF_TOKEN, HF_ENDPOINT and proxies are honoured.
    """
    from app.cli.planning import planning_circumstances
    from app.library.describe import describe_repository
    from app.library.hub.access import hub_access_from_environment
    from app.library.hub.repo_list import list_repos
    from app.settings.settings import load_settings

    settings, access = load_settings(), hub_access_from_environment()
    listed = list_repos(access, " ".join(words), limit)  # first: without a network it ends here, before any measuring
    here = planning_circumstances(settings, vram, ram)
    hits = asyncio.run(_looked_at(listed, access, here))
    if only_fitting:
        hits = [hit for hit in map(_fitting, hits) if hit.families or hit.problem]
    if wants_json:
        click.echo(json.dumps(encode({"repositories": [describe_repository(hit) for hit in hits]})))
        return
    for hit in hits:
        for line in _lines(hit):
            click.echo(printable(line))
    if not hits:
        click.echo("Nothing was found.")


async def _looked_at(listed: Sequence[ListedRepo], access: HubAccess, here: PlanningContext) -> list[SearchHit]:
    from app.cli.output.progress import Meter
    from app.library.hub.search import inspect_repos

    with Meter("Reading headers", len(listed)) as meter:
        return await inspect_repos(listed, access, here, meter.advance)


def _fitting(hit: SearchHit) -> SearchHit:
    """The hit without quants that do not fit, and without families that are empty then."""
    families = [
        replace(family, candidates=tuple(each for each in family.candidates if each.fit.runs_well))
        for family in hit.families
    ]
    return replace(hit, families=tuple(family for family in families if family.candidates))


def _lines(hit: SearchHit) -> Iterator[str]:
    listed = hit.listed
    facts = [f"{listed.n_downloads:,} downloads", listed.licence, "gated" if listed.is_gated else ""]
    facts.append("checkpoint, to be converted" if listed.is_checkpoint else "")
    yield f"{listed.repo}  {', '.join(fact for fact in facts if fact)}"
    for family in hit.families:
        yield from _family_lines(family)
    if hit.problem:
        yield f"  ! {hit.problem}"
    if hit.n_left_out:
        yield f"  and {hit.n_left_out} files of other models"


def _family_lines(family: Family) -> Iterator[str]:
    from app.cli.output.plan import format_fit
    from app.library.machine_fit.quant_rule import choose_quant

    context = f", context {family.n_ctx_train:,}" if family.n_ctx_train else ""
    yield f"  {family.architecture}, {family.n_parameters / 1e9:.1f}B parameters{context}"
    best = choose_quant(family.candidates)
    width = max(len(candidate.name) for candidate in family.candidates)
    for candidate in family.candidates:
        mark = "  ← suits this machine best" if candidate is best else ""
        size = f"{candidate.n_bytes / 1e9:.2f} GB"
        yield f"    {candidate.name.ljust(width)}  {size:>9}  {format_fit(candidate.fit)}{mark}"
