"""`localllm plan`: what fits, how fast it will be, and where the cliff is, before anything is loaded."""

from __future__ import annotations

import json

import click

from app.terminal import printable

__all__ = ["plan"]

_MOST_N_CTX = 1 << 30  # llama.cpp counts cells in 32 bits


@click.command()
@click.argument("model")
@click.option("--ctx", "n_ctx", type=click.IntRange(0, _MOST_N_CTX), default=0, help="Tokens of context; 0 chooses.")
@click.option("--kv", "kv_type", help="Type of the KV cache: TYPE or K_TYPE,V_TYPE, such as q8_0.")
@click.option("--vram", multiple=True, help="Plan for this GPU instead of those here: NAME=SIZE[@SPEED], repeatable.")
@click.option("--ram", help="Plan for so much memory: SIZE[@SPEED], such as 16GiB@60GB/s.")
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", is_flag=True, help="Draw the speed against the layers on the GPU.")
def plan(
    model: str, n_ctx: int, kv_type: str | None, vram: tuple[str, ...], ram: str | None, wants_json: bool, plot: bool
) -> None:
    """Tell what MODEL (guide, a path to a GGUF, or a name in the library) comes to on this machine, or on another.

    No weights are loaded: the header is read, the machine is asked, llama.cpp says what it would compute in, and the
    rest is arithmetic.
    """
    from app.cli.machine_options import given_machine
    from app.cli.plan_report import curve_lines, plan_json, plan_lines
    from app.engine.dry_run import dry_compute_bytes
    from app.engine.machine import survey
    from app.library.resolve import resolve
    from app.settings import load_settings
    from offload.kv_cache import parse_kv_types
    from offload.model import PlannedModel
    from offload.plan import PlanQuestion
    from offload.plan import plan as planned
    from offload.speed import expected_rates
    from quantizer.gate import admit, tensors_of

    settings = load_settings({"kv_type": kv_type})
    header = admit(resolve(model, settings).path)
    machine = given_machine(survey().machine, vram, ram)
    question = PlanQuestion(
        n_ctx=n_ctx or settings.ctx,
        kv_types=parse_kv_types(settings.kv_type),
        n_sequences=settings.parallel,
        is_fused=bool(machine.gpus),
    )
    rates, candidate = expected_rates(machine), PlannedModel(header, tensors_of(header))
    setting = planned(candidate, question, machine, rates).setting
    measured = candidate.measured(setting, dry_compute_bytes(header.path, setting))
    found = planned(measured, question, machine, rates)
    if wants_json:
        click.echo(json.dumps(plan_json(found)))
        return
    for line in plan_lines(found):
        click.echo(printable(line))
    if plot:
        click.echo()
        for line in curve_lines(found):
            click.echo(printable(line))
