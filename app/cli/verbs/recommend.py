"""`localllm recommend`: which model to begin with on this machine, and why. It needs no network."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import click

from app.cli.options import options
from app.cli.output.format import print_json, print_lines
from app.cli.resources import requested_planning_context
from app.protocol.library import Recommendation, Recommendations, Recommended
from app.settings.settings import load_settings

# By role: those of app.library.hub.catalogue, which help must not wait for.
_FOR = {
    "chat": "To chat",
    "code": "To write code, filling in the middle",
    "small": "Small and quick",
    "moe": "With experts, of which a token reads a few",
    "thinking": "To think before it answers",
    "tools": "To call tools",
    "vision": "To look at images",
    "embedding": "To find texts by their meaning",
    "reranking": "To order texts by how well they answer",
}


@click.command(epilog="Example: localllm recommend --role code --vram 'RTX 3060=12GiB' --ram 32GiB@45GB/s")
@click.option("--role", type=click.Choice(tuple(_FOR)), help="Recommend for this role only.")
@options("vram", "ram", "wants_json")
def recommend(role: str | None, vram: tuple[str, ...], ram: str | None, wants_json: bool) -> None:
    """Recommend models of a short catalogue for this machine, with the reason.

    Sizes and speeds are computed from the models' shapes; nothing is downloaded.
    """
    from app.library.hub.catalogue import Role, catalogue_notice, read_catalogue
    from app.library.hub.recommend import recommend_each

    here = requested_planning_context(load_settings(), vram, ram)
    wanted = [Role(role)] if role else list(Role)
    catalogue = read_catalogue()
    found = Recommendations(recommend_each(catalogue.models, wanted, here), catalogue_notice(catalogue.dated, _today()))
    if wants_json:
        print_json(found)
        return
    for each in found.recommendations:
        print_lines(_lines(each))
    if found.notice:
        click.echo(found.notice)


def _today() -> date:
    return date.today()


def _lines(found: Recommendation) -> Iterator[str]:
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
