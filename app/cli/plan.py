"""`localllm plan`: what fits, how fast it will be, and where the cliff is, before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from app.cli.completions import complete_model
from app.cli.rpc_option import rpc_option, told_endpoints
from app.terminal import printable

if TYPE_CHECKING:
    from app.settings import Settings
    from offload.machine import Machine
    from offload.model import PlannedModel
    from offload.plan import Plan
    from offload.profile import Setting

__all__ = ["plan"]

_MOST_N_CTX = 1 << 30  # llama.cpp counts cells in 32 bits
_MOST_DRY_CELLS = 1 << 22  # a dry run takes 50 bytes for each, however much memory the machine has that is planned for


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("--ctx", "n_ctx", type=click.IntRange(0, _MOST_N_CTX), help="Tokens of context; 0 chooses.")
@click.option("--kv", "kv_type", help="Type of the KV cache: TYPE or K_TYPE,V_TYPE, such as q8_0.")
@click.option("--vram", multiple=True, help="Plan for this GPU instead of those here: NAME=SIZE[@SPEED], repeatable.")
@click.option("--ram", help="Plan for so much memory: SIZE[@SPEED], such as 16GiB@60GB/s.")
@rpc_option
@click.option("--draft", metavar="MODEL", help="Count a draft model too.")
@click.option("--lora", multiple=True, metavar="FILE[=NAME]", help="Count a LoRA adapter too; repeatable.")
@click.option("--mmproj", metavar="FILE", help="Count a projector too, which turns pictures into tokens.")
@click.option("--kv-table", "wants_table", is_flag=True, help="Print only how large its cache is, by context and type.")
@click.option("--speculation", "wants_gains", is_flag=True, help="Print only what drafts gain, by how they are taken.")
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", is_flag=True, help="Draw the speed against the layers on the GPU.")
def plan(
    model: str,
    n_ctx: int | None,
    kv_type: str | None,
    vram: tuple[str, ...],
    ram: str | None,
    rpc: str | None,
    draft: str | None,
    lora: tuple[str, ...],
    mmproj: str | None,
    wants_table: bool,
    wants_gains: bool,
    wants_json: bool,
    plot: bool,
) -> None:
    """Tell what MODEL (guide, a path to a GGUF, or a name in the library) comes to on this machine, or on another.

    No weights are loaded: the header is read, the machine is asked, llama.cpp says what it would compute in, and the
    rest is arithmetic.
    """
    from app.cli.gain_report import gains_json, gains_lines
    from app.cli.plan_companions import attached_to, told_of_projectors
    from app.cli.plan_report import kv_table_json, kv_table_lines, plan_lines
    from app.engine.draft_gain import draft_gains
    from app.engine.measured_cost import measured_cost
    from app.engine.step_cost import StepCost
    from app.library.resolve import resolve
    from app.settings import load_settings
    from offload.kv_table import kv_table
    from offload.model import PlannedModel
    from offload.plan_json import plan_json
    from quantizer.gate import admit, tensors_of

    settings = load_settings({"ctx": n_ctx, "kv_type": kv_type, "rpc": rpc})
    header = admit(resolve(model, settings).path)
    companions = attached_to(header, model, settings, draft=draft, lora=lora, mmproj=mmproj)
    candidate = PlannedModel(header, tensors_of(header), companions=companions)
    if wants_table:
        rows = kv_table(candidate, settings.parallel)
        told, lines = kv_table_json(rows), kv_table_lines(rows)
    elif wants_gains:
        cost = measured_cost(header.path, settings.cache_dir)
        gains = draft_gains(cost or StepCost())
        told, lines = gains_json(gains, is_measured=cost is not None), gains_lines(gains, is_measured=cost is not None)
    else:
        found = _planned(candidate, settings, _machine(settings, vram, ram), is_here=not vram and ram is None)
        found = told_of_projectors(found, header.path, companions)
        told, lines = plan_json(found), plan_lines(found, with_curve=plot)
    if wants_json:
        click.echo(json.dumps(told))
        return
    for line in lines:
        click.echo(printable(line))


def _machine(settings: Settings, vram: tuple[str, ...], ram: str | None) -> Machine:
    """Return the machine to plan for."""
    from app.cli.machine_options import given_machine
    from app.engine.machine import survey

    return given_machine(lambda: survey(told_endpoints(settings)).machine, vram, ram)


def _planned(model: PlannedModel, settings: Settings, machine: Machine, *, is_here: bool) -> Plan:
    """Plan, with what llama.cpp says that this plan computes in: of devices that are not here, by the processor's."""
    from app.engine.dry_run import compute_by_device, dry_run_request
    from app.engine.question import question_of
    from app.engine.rates import rates_here
    from app.engine.rpc import endpoints_of
    from offload.dry_plan import dry_plan
    from offload.load_parameters import ON_HOST, LoadParameters
    from offload.plan import plan as planned
    from offload.speed import expected_rates

    def dry_run(setting: Setting, parameters: LoadParameters) -> dict[str, int]:
        request = dry_run_request(model.header.path, setting, parameters)
        return compute_by_device(replace(request, rpc=endpoints_of(settings.rpc)))

    question = question_of(settings, machine)
    rates = rates_here(machine, settings.cache_dir, settings.threads) if is_here else expected_rates(machine)
    found = planned(model, question, machine, rates)
    if found.setting.n_cells > _MOST_DRY_CELLS:
        return found
    if is_here:
        return dry_plan(model, question, machine, rates, dry_run)
    n_bytes = sum(dry_run(found.setting, ON_HOST).values())
    return planned(model.measured(found.setting, n_bytes), question, machine, rates)
