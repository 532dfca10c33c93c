"""`localllm doctor`: a check of this machine, and the bottleneck of one model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.options import announced_rpc_endpoints, complete_model, options, setting_options
from app.cli.output.format import print_json
from app.protocol.library import MachineReport
from app.terminal import printable

__all__ = ["ModelDiagnosis", "diagnose_model", "doctor", "model_json", "model_lines"]

if TYPE_CHECKING:
    from app.bench.target import TurnTiming
    from app.settings.settings import Settings
    from offload.advice.bottleneck import Bottleneck, Symptoms
    from offload.devices.machine import Machine


@dataclass(frozen=True, slots=True)
class ModelDiagnosis:
    """The measured turn of a model, and its bottleneck."""

    turn: TurnTiming
    found: Bottleneck


def diagnose_model(model: str, settings: Settings, machine: Machine) -> ModelDiagnosis:
    """Measure one turn of `model` and find its bottleneck. Raises UserError."""
    from app.bench.target import measure_turn
    from app.cli.output.answer import LoadingLine
    from app.library.local.resolve import resolve
    from offload.advice.bottleneck import bottleneck

    path = resolve(model, settings).path
    symptoms_of = _symptoms_by_turn(path, settings, machine)
    click.echo(printable(f"Measuring {path.name} …"), err=True)
    turn = asyncio.run(measure_turn(model, settings, LoadingLine().show))
    return ModelDiagnosis(turn, bottleneck(symptoms_of(turn)))


def _symptoms_by_turn(path: Path, settings: Settings, machine: Machine) -> Callable[[TurnTiming], Symptoms]:
    """Plan the model at `path` and return the function from a measured turn to its symptoms."""
    from app.engine.load.machine_file import model_key
    from app.engine.tuning.tune_results import TuneFile
    from app.library.machine_fit.planning import local_planning_context
    from offload.advice.bottleneck import Symptoms
    from offload.footprint.model import PlannedModel
    from offload.speed.speed_by_depth import faster_quantization
    from quantizer.gguf.validation import tensors_of, validate_gguf

    header = validate_gguf(path)
    candidate, here = PlannedModel(header, tensors_of(header)), local_planning_context(settings, machine)
    planned = here.plan(candidate)
    smaller = faster_quantization(candidate, here.requested, here.machine, here.rates)
    work = TuneFile(settings.cache_dir).work(model_key(path))

    def symptoms(turn: TurnTiming) -> Symptoms:
        return Symptoms(
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

    return symptoms


def model_json(diagnosis: ModelDiagnosis) -> dict[str, Any]:
    """Return the diagnosis as JSON."""
    return {**asdict(diagnosis.turn), **asdict(diagnosis.found)}


def model_lines(model: str, diagnosis: ModelDiagnosis) -> Iterator[str]:
    """Yield the diagnosis as text."""
    from offload.format import format_speed

    turn, found = diagnosis.turn, diagnosis.found
    yield f"{model}: answers {format_speed(turn.decode_tps)} tok/s, prompts {format_speed(turn.prefill_tps)} tok/s."
    yield f"Bottleneck: {found.constraint}. {found.reason}"
    yield f"First: {found.first_step}"


@click.command(epilog="Example: localllm doctor guide")
@click.argument("model", required=False, shell_complete=complete_model)
@setting_options("rpc")
@options("wants_json")
def doctor(model: str | None, rpc: str | None, wants_json: bool) -> None:
    """Check processor, memory, GPUs, disk and the build of llama.cpp, in a few seconds.

    With MODEL (guide, a path to a GGUF, or a name in the library) also measure one answer and report its bottleneck:
    memory capacity, memory bandwidth, prefill compute or the queue.
    """
    from app.diagnostics import collect_findings, describe_machine
    from app.engine.load.machine import survey
    from app.protocol.codec import encode
    from app.settings.settings import load_settings

    settings = load_settings({"rpc": rpc})
    findings = collect_findings(settings, survey(announced_rpc_endpoints(settings)), model)
    report = describe_machine(findings)
    diagnosis = diagnose_model(model, settings, findings.machine) if model else None
    if wants_json:
        print_json(encode(report) | ({"model": model_json(diagnosis)} if diagnosis else {}))
        return
    for line in _lines(report):
        click.echo(printable(line))
    if model and diagnosis:
        click.echo()
        for line in model_lines(model, diagnosis):
            click.echo(printable(line))


def _lines(report: MachineReport) -> Iterator[str]:
    for label, text in report.rows:
        yield f"{label:<10} {text}"
    yield ""
    if not report.problems:
        yield "No problems found."
    for problem in report.problems:
        yield f"! {problem.what}"
        yield f"  {problem.next_step}"
