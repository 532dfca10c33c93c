"""`localllm plan`: what fits, how fast it will be, and where the cliff is, before anything is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from app.terminal import printable

if TYPE_CHECKING:
    from app.settings import Settings
    from offload.machine import Machine
    from offload.model import PlannedModel
    from offload.plan import Plan

__all__ = ["plan"]

_MOST_N_CTX = 1 << 30  # llama.cpp counts cells in 32 bits


@click.command()
@click.argument("model")
@click.option("--ctx", "n_ctx", type=click.IntRange(0, _MOST_N_CTX), help="Tokens of context; 0 chooses.")
@click.option("--kv", "kv_type", help="Type of the KV cache: TYPE or K_TYPE,V_TYPE, such as q8_0.")
@click.option("--vram", multiple=True, help="Plan for this GPU instead of those here: NAME=SIZE[@SPEED], repeatable.")
@click.option("--ram", help="Plan for so much memory: SIZE[@SPEED], such as 16GiB@60GB/s.")
@click.option("--kv-table", "wants_table", is_flag=True, help="Print only how large its cache is, by context and type.")
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", is_flag=True, help="Draw the speed against the layers on the GPU.")
def plan(
    model: str,
    n_ctx: int | None,
    kv_type: str | None,
    vram: tuple[str, ...],
    ram: str | None,
    wants_table: bool,
    wants_json: bool,
    plot: bool,
) -> None:
    """Tell what MODEL (guide, a path to a GGUF, or a name in the library) comes to on this machine, or on another.

    No weights are loaded: the header is read, the machine is asked, llama.cpp says what it would compute in, and the
    rest is arithmetic.
    """
    from app.cli.machine_options import given_machine
    from app.cli.plan_report import kv_table_json, kv_table_lines, plan_lines
    from app.engine.machine import survey
    from app.library.resolve import resolve
    from app.settings import load_settings
    from offload.kv_table import kv_table
    from offload.model import PlannedModel
    from offload.plan_json import plan_json
    from quantizer.gate import admit, tensors_of

    settings = load_settings({"ctx": n_ctx, "kv_type": kv_type})
    header = admit(resolve(model, settings).path)
    candidate = PlannedModel(header, tensors_of(header))
    if wants_table:
        rows = kv_table(candidate, settings.parallel)
        told, lines = kv_table_json(rows), kv_table_lines(rows)
    else:
        found = _planned(candidate, settings, given_machine(lambda: survey().machine, vram, ram))
        told, lines = plan_json(found), plan_lines(found, with_curve=plot)
    if wants_json:
        click.echo(json.dumps(told))
        return
    for line in lines:
        click.echo(printable(line))


def _planned(model: PlannedModel, settings: Settings, machine: Machine) -> Plan:
    """Plan with the formula for compute buffers, then with what a dry run of that plan's setting took."""
    from app.engine.dry_run import dry_compute_bytes
    from offload.kv_cache import parse_kv_types
    from offload.plan import PlanQuestion
    from offload.plan import plan as planned
    from offload.speed import expected_rates

    question = PlanQuestion(
        n_ctx=settings.ctx,
        kv_types=parse_kv_types(settings.kv_type),
        n_sequences=settings.parallel,
        is_fused=bool(machine.gpus),
    )
    rates = expected_rates(machine)
    setting = planned(model, question, machine, rates).setting
    n_bytes = dry_compute_bytes(model.header.path, setting)
    return planned(model.measured(setting, n_bytes), question, machine, rates)
