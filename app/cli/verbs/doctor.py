"""`localllm doctor`: a check of this machine, and the bottleneck of one model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from app.cli.options import complete_model, options, setting_options
from app.cli.output.format import print_json, print_lines
from app.cli.resources import announced_rpc_endpoints
from app.common.terminal import printable
from app.protocol.codec import encode
from app.protocol.library import MachineReport
from app.settings.settings import Settings, load_settings

if TYPE_CHECKING:
    from app.bench.target import TurnTiming
    from offload.advice.doctor import Bottleneck
    from offload.devices.machine import Machine


@click.command(epilog="Example: localllm doctor guide")
@click.argument("model", required=False, shell_complete=complete_model)
@setting_options("rpc")
@options("wants_json")
def doctor(model: str | None, rpc: str | None, wants_json: bool) -> None:
    """Check processor, memory, GPUs, disk and the build of llama.cpp, in a few seconds.

    With MODEL (guide, a path to a GGUF, or a name in the library) also measure one answer and report its bottleneck:
    memory capacity, memory bandwidth, prefill compute, or the queue.
    """
    from app.engine.load.machine import survey
    from app.library.machine_fit.diagnostics import collect_findings, describe_machine

    settings = load_settings({"rpc": rpc})
    findings = collect_findings(settings, survey(announced_rpc_endpoints(settings), settings.cache_dir), model)
    report = describe_machine(findings)
    diagnosis = _diagnose(model, settings, findings.machine) if model else None
    if wants_json:
        figures = {name: value for part in diagnosis or () for name, value in asdict(part).items()}
        print_json(encode(report) | ({"model": figures} if diagnosis else {}))
        return
    print_lines(_lines(report))
    if model and diagnosis:
        from offload.format import format_speed

        turn, found = diagnosis
        decode, prefill = format_speed(turn.decode_tps), format_speed(turn.prefill_tps)
        click.echo()
        print_lines(
            (
                f"{model}: answers {decode} tok/s, prompts {prefill} tok/s.",
                f"Bottleneck: {found.constraint}. {found.reason}",
                f"First: {found.first_step}",
            )
        )


def _diagnose(model: str, settings: Settings, machine: Machine) -> tuple[TurnTiming, Bottleneck]:
    """Measure one turn of `model`, and return it with the bottleneck. Raises UserError."""
    from app.bench.target import measure_turn
    from app.cli.output.answer import LoadingLine
    from app.engine.tuning.tune_results import TuneFile, tune_key
    from app.library.local.resolve import resolve
    from app.library.machine_fit.planning import local_planning_context
    from offload.advice.doctor import Symptoms, bottleneck
    from offload.footprint.model import PlannedModel
    from offload.plan import faster_quantization

    path = resolve(model, settings).path
    candidate, here = PlannedModel.read(path), local_planning_context(settings, machine)
    planned = here.plan(candidate)
    smaller = faster_quantization(candidate, here.requested, here.machine, here.rates)
    work = TuneFile(settings.cache_dir).work(tune_key(candidate.header))
    click.echo(printable(f"Measuring {path.name} …"), err=True)
    turn = asyncio.run(measure_turn(model, settings, LoadingLine().show))
    symptoms = Symptoms(
        verdict=planned.assessment.verdict,
        queue_s=turn.queue_s,
        n_ahead=turn.n_ahead,
        prefill_tps=turn.prefill_tps,
        decode_tps=turn.decode_tps,
        n_prefill=work.n_prefill,
        n_decode=work.n_decode,
        read_bytes=sum(share.read_bytes for share in planned.assessment.shares),
        predicted_tps=planned.assessment.decode_tps,
        remedy=planned.remedies[0].what if planned.remedies else None,
        smaller=smaller,
    )
    return turn, bottleneck(symptoms)


def _lines(report: MachineReport) -> Iterator[str]:
    for label, text in report.rows:
        yield f"{label:<10} {text}"
    yield ""
    if not report.problems:
        yield "No problems found."
    for problem in report.problems:
        yield f"! {problem.what}"
        yield f"  {problem.next_step}"
