"""`localllm import` and `localllm cp`: give a model a name in the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from app.cli.options import complete_model, options
from app.cli.output.format import format_bytes, print_json
from app.cli.resources import open_index
from app.common.terminal import printable_line
from app.protocol.library import ImportWay, PlacementResult
from app.settings.settings import load_settings

if TYPE_CHECKING:
    from app.library.local.model_files import ModelRef


@click.command("import", epilog="Example: localllm import llama3.2:3b --as meta/llama-3.2")
@click.argument("source", shell_complete=complete_model)
@click.option("--as", "name", default="", metavar="NAME", help="NAME, PUBLISHER/REPO or PUBLISHER/REPO/NAME.")
@click.option("--copy", "is_copy", is_flag=True, help="Copy the bytes instead of linking to them.")
@options("wants_json")
def import_model(source: str, name: str, *, is_copy: bool, wants_json: bool) -> None:
    """Import a model into the library without a second copy of its bytes.

    SOURCE is a path to a GGUF, or a model that `localllm ls --external` lists. It is linked: the other program and the
    library share one file. On another disk the link refers to the original, which must stay there.
    """
    from app.library.local.resolve import find_importable

    _place(find_importable(source, load_settings()), name, is_copy=is_copy, wants_json=wants_json)


@click.command(epilog="Example: localllm cp qwen3:0.6b-q8_0 coder")
@click.argument("model", shell_complete=complete_model)
@click.argument("name")
@options("wants_json")
def cp(model: str, name: str, *, wants_json: bool) -> None:
    """Give MODEL a second NAME in the library, which takes no disk space.

    NAME may be PUBLISHER/REPO/NAME too. Removing one of the names leaves the other.
    """
    from app.library.local.resolve import resolve

    _place(resolve(model, load_settings()), name, is_copy=False, wants_json=wants_json)


def _place(source: ModelRef, name: str, *, is_copy: bool, wants_json: bool) -> None:
    from app.cli.output.progress import Meter
    from app.library.local.placement import copy_model, link_model, plan_import
    from app.library.local.resolve import resolve

    settings = load_settings()
    plan = plan_import(source, name, settings.models_dir)
    with open_index(settings.cache_dir) as index:
        way: ImportWay = "copy"
        if is_copy:
            with Meter("Copying", plan.n_bytes, is_bytes=True) as meter:
                copy_model(plan, index, meter.advance)
        else:
            way = link_model(plan, index)
    placed = resolve(str(plan.path), settings)
    if wants_json:
        print_json(PlacementResult(placed.id, str(placed.path), plan.n_bytes, way))
        return
    click.echo(f"{printable_line(placed.id)} ({format_bytes(plan.n_bytes)}) is in the library: {_WAYS[way]}.")


_WAYS: dict[ImportWay, str] = {
    "hard link": "it shares its bytes with the original, and stays when that is removed",
    "reflink": "it shares its bytes with the original, and stays when that is removed",
    "symbolic link": "it refers to the original, which must stay where it is",
    "copy": "a copy",
}
