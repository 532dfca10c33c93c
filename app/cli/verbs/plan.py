"""`localllm plan`: what fits, how fast it will be, and where the cliff is, before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from app.cli.options import complete_model, options, setting_options
from app.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.settings.settings import Settings

__all__ = ["plan"]


@click.command(epilog="Example: localllm plan unsloth/gemma-3-4b-it-GGUF:Q4_K_M --vram 'RTX 3060=12GiB'")
@click.argument("model", shell_complete=complete_model)
@setting_options("ctx", "kv_type")
@options("vram", "ram")
@setting_options("rpc", "draft", "lora")
@click.option("--mmproj", metavar="FILE", help="Multimodal projector to plan for too.")
@click.option(
    "--kv-table", "wants_table", is_flag=True, help="Print only the size of the KV cache by context and type."
)
@click.option("--speculation", "wants_gains", is_flag=True, help="Speculative speed-up by acceptance rate.")
@click.option("--plot", is_flag=True, help="Plot speed against layers on the GPU.")
@options("wants_json")
def plan(
    model: str,
    ctx: int | None,
    kv_type: str | None,
    vram: tuple[str, ...],
    ram: str | None,
    rpc: str | None,
    draft: str | None,
    lora: tuple[str, ...] | None,
    mmproj: str | None,
    wants_table: bool,
    wants_gains: bool,
    wants_json: bool,
    plot: bool,
) -> None:
    """Report how MODEL (guide, a path to a GGUF, or a name in the library) fits this machine, or another, and how fast.

    No weights are loaded: only the header is read, and llama.cpp computes its buffer sizes. For a model that is not
    downloaded (org/repo, org/repo:Q4_K_M, org/repo/file.gguf, a URL, or a name of the catalogue) only the header is
    fetched, and a formula estimates the buffers.
    """
    from app.cli.output.plan import kv_table_json, kv_table_lines, plan_lines
    from app.cli.plan_companions import attached_to, told_of_projectors
    from app.cli.planning import planning_circumstances
    from app.library.hub.lookup import find_model
    from app.library.machine_fit.planning import plan_of, plan_of_absent
    from app.protocol.codec import encode
    from app.protocol.plan import describe_plan
    from app.settings.settings import load_settings
    from offload.footprint.model import kv_table

    settings = load_settings({"ctx": ctx, "kv_type": kv_type, "rpc": rpc})
    wanted = cache(lambda: planning_circumstances(settings, vram, ram))
    candidate, notice = find_model(model, settings, wanted)
    if wants_table:
        rows = kv_table(candidate, settings.parallel)
        told, lines = kv_table_json(rows), kv_table_lines(rows)
    elif wants_gains:
        told, lines = _gains(None if notice else candidate.header.path, settings)
    elif notice:
        found = plan_of_absent(candidate, notice, wanted())
        told, lines = encode(describe_plan(found)), plan_lines(found, with_curve=plot)
    else:
        auxiliary = attached_to(candidate.header, model, settings, draft=draft, lora=lora or (), mmproj=mmproj)
        candidate = replace(candidate, auxiliary=auxiliary)
        found = plan_of(candidate, settings, wanted(), is_here=not vram and ram is None)
        found = told_of_projectors(found, candidate.header.path, auxiliary)
        told, lines = encode(describe_plan(found)), plan_lines(found, with_curve=plot)
    if wants_json:
        click.echo(json.dumps(told))
        return
    for line in lines:
        click.echo(printable(line))


def _gains(path: Path | None, settings: Settings) -> tuple[dict[str, Any], Iterator[str]]:
    """Return what drafts gain, by what steps of the model at `path` were measured to cost; None is measured nowhere."""
    from app.cli.output.plan import gains_json, gains_lines
    from app.engine.speculative.acceptance import draft_gains
    from app.engine.speculative.step_cost import StepCost
    from app.engine.tuning.tune_results import measured_step_cost

    cost = measured_step_cost(path, settings.cache_dir) if path else None
    gains = draft_gains(cost or StepCost())
    return gains_json(gains, is_measured=cost is not None), gains_lines(gains, is_measured=cost is not None)
