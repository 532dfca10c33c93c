"""`localllm doctor`: what this machine is for running models, what is wrong with it, and the next step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from app.cli.completions import complete_model
from app.cli.rpc_option import rpc_option, told_endpoints
from app.terminal import printable

if TYPE_CHECKING:
    from offload.health import Findings, Problem

__all__ = ["doctor"]


@click.command(epilog="Example: localllm doctor guide")
@click.argument("model", required=False, shell_complete=complete_model)
@rpc_option
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
def doctor(model: str | None, rpc: str | None, wants_json: bool) -> None:
    """Look at processor, memory, GPUs, disk and the build of llama.cpp, in a few seconds.

    With MODEL (guide, a path to a GGUF, or a name in the library) it is asked for an answer too, and what holds it back
    is told: memory capacity, memory bandwidth, prefill compute or the queue.
    """
    from app.checkup import checkup_json, findings_here
    from app.cli.doctor_model import examined, model_json, model_lines
    from app.engine.machine import survey
    from app.settings import load_settings
    from offload.health import problems_of

    settings = load_settings({"rpc": rpc})
    findings = findings_here(settings, survey(told_endpoints(settings)), model)
    problems = problems_of(findings)
    examination = examined(model, settings, findings.machine) if model else None
    if wants_json:
        of_model = {"model": model_json(examination)} if examination else {}
        click.echo(json.dumps(checkup_json(findings, problems) | of_model))
        return
    for line in _lines(findings, problems):
        click.echo(printable(line))
    if model and examination:
        click.echo()
        for line in model_lines(model, examination):
            click.echo(printable(line))


def _lines(findings: Findings, problems: tuple[Problem, ...]) -> Iterator[str]:
    from app.checkup import machine_rows

    for label, text in machine_rows(findings):
        yield f"{label:<10} {text}"
    yield ""
    if not problems:
        yield "Nothing is wrong."
    for problem in problems:
        yield f"! {problem.what}"
        yield f"  {problem.next_step}"
