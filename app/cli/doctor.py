"""`localllm doctor`: what this machine is for running models, what is wrong with it, and the next step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli.completions import complete_model
from app.cli.rpc_option import rpc_option, told_endpoints
from app.terminal import printable

if TYPE_CHECKING:
    from app.settings import Settings
    from offload.health import Findings, Problem
    from offload.machine import Device

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
    from app.cli.doctor_model import examined, model_json, model_lines
    from app.settings import load_settings
    from offload.health import problems_of

    settings = load_settings({"rpc": rpc})
    findings = _findings(settings, model)
    problems = problems_of(findings)
    examination = examined(model, settings, findings.machine) if model else None
    if wants_json:
        of_model = {"model": model_json(examination)} if examination else {}
        click.echo(json.dumps(_json(findings, problems) | of_model))
        return
    for line in _lines(findings, problems):
        click.echo(printable(line))
    if model and examination:
        click.echo()
        for line in model_lines(model, examination):
            click.echo(printable(line))


def _findings(settings: Settings, model: str | None) -> Findings:
    from importlib import metadata

    import psutil

    from app.engine.machine import survey
    from app.engine.selftest import examine
    from offload.cpu import has_avx2
    from offload.health import Findings

    found = survey(told_endpoints(settings))
    return Findings(
        machine=found.machine,
        engine_version=metadata.version("llama-cpp-python"),
        unusable_vendors=[gpu.vendor for gpu in found.unusable],
        is_limited=found.memory.is_limited,
        has_avx2=has_avx2(),
        swapped_bytes=psutil.swap_memory().used,
        repacking_is_safe=examine(settings.cache_dir / "selftest.json").is_safe,
        disk_bytes_per_s=_disk_speed(settings, model),
    )


def _disk_speed(settings: Settings, model: str | None) -> float | None:
    """Return how fast MODEL is read from its disk, or the largest model that is here; None where nobody can tell."""
    from app.library.resolve import available, resolve
    from offload.disk import measure_disk_read

    paths = [resolve(model, settings).path] if model else [ref.path for ref in available(settings)]
    largest = max(filter(Path.is_file, paths), key=lambda path: path.stat().st_size, default=None)
    return measure_disk_read(largest) if largest else None


def _json(findings: Findings, problems: tuple[Problem, ...]) -> dict[str, Any]:
    machine = findings.machine
    return {
        "verdict": "problems" if problems else "good",
        "engine": findings.engine_version,
        "devices": [asdict(device) for device in (machine.host, *machine.gpus)],
        "disk_bytes_per_s": findings.disk_bytes_per_s,
        "problems": [asdict(problem) for problem in problems],
    }


def _lines(findings: Findings, problems: tuple[Problem, ...]) -> Iterator[str]:
    from offload.cpu import cpu_model, default_threads

    machine = findings.machine
    yield f"processor  {cpu_model()}, {default_threads()} cores"
    yield f"memory     {_memory(machine.host)}"
    for gpu in machine.gpus:
        yield f"{gpu.name:<10} {gpu.description}, {_memory(gpu)}{_link(gpu)}"
    if not machine.gpus:
        yield "GPU        none that this build of llama.cpp can use"
    yield f"models     {_disk(findings.disk_bytes_per_s)}"
    yield f"engine     llama-cpp-python {findings.engine_version}"
    yield ""
    if not problems:
        yield "Nothing is wrong."
    for problem in problems:
        yield f"! {problem.what}"
        yield f"  {problem.next_step}"


def _disk(bytes_per_s: float | None) -> str:
    return (
        f"read from disk at {bytes_per_s / 1e6:,.0f} MB/s"
        if bytes_per_s
        else "how fast they are read from disk is unknown"
    )


def _link(gpu: Device) -> str:
    """Say how a device of another machine is reached."""
    if gpu.link_latency_s is None or gpu.link_bytes_per_s is None:
        return ""
    return f", reached in {gpu.link_latency_s * 1000:.1f} ms at {gpu.link_bytes_per_s / 1e9:.2g} GB/s"


def _memory(device: Device) -> str:
    from offload.wording import gigabytes_per_s, memory

    if not device.total_bytes:
        return "how much memory it has is unknown"
    pace = f"read at {gigabytes_per_s(device.bytes_per_s)} GB/s" if device.bytes_per_s else "speed unknown"
    return f"{memory(device.free_bytes)} of {memory(device.total_bytes)} free, {pace}"
