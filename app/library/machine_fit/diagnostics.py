"""The diagnostics of this machine: devices, memory, disk, engine build, and problems.

Owns collecting the findings and describing them. `offload.advice.doctor` decides what is a problem.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from app.common.event_log import LOG_NAME
from app.common.outbound import environment_proxies, tls_context
from app.common.terminal import counted, format_bytes
from app.engine.load.draft_copy import FOLDER as COPIES
from app.engine.load.machine import Survey
from app.engine.load.self_test import SelfTestResult, run_self_test
from app.engine.project_texts import corpora_bytes
from app.library.external import find_external_models
from app.library.hub.access import HubAccess, hub_access_from_environment
from app.library.local.resolve import available, resolve
from app.protocol.library import MachineProblem, MachineReport
from app.settings.folders import find_folders
from app.settings.private_files import CORPORA
from offload.advice.doctor import BUILD_TOOLS, Findings, Problem, find_problems
from offload.devices.bandwidth import measure_disk_read
from offload.devices.host import affinity, cpu_model, default_threads, has_avx2
from offload.devices.numa import choose_numa, numa_nodes
from offload.format import format_bandwidth, format_memory
from quantizer.system.errors import UserError, WrongProcessorError
from quantizer.system.files import is_file, sorted_glob
from quantizer.system.installation import find_installation

if TYPE_CHECKING:
    from app.settings.settings import Settings
    from offload.devices.machine import Device


def collect_findings(settings: Settings, found: Survey, model: str | None = None) -> Findings:
    """Return the survey with the speed of the disk and the build of llama.cpp, measured in a few seconds. The disk's
    speed is that of reading `model`, or the largest local model. Raises EngineError where measuring fails."""
    paths = [resolve(model, settings).path] if model else [ref.path for ref in available(settings)]
    largest = max(filter(_is_readable, paths), key=lambda path: path.stat().st_size, default=None)
    folders = find_folders(settings)
    library_problems = []
    try:
        tested = run_self_test(settings.cache_dir)
    except WrongProcessorError as error:
        tested = SelfTestResult(is_safe=True, is_new=True, features="none that this processor can run")
        library_problems.append(Problem(error.cause, error.remedy))
    return Findings(
        machine=found.machine,
        engine_version=metadata.version("llama-cpp-python"),
        installation=find_installation(),
        build_tools=frozenset(filter(shutil.which, BUILD_TOOLS)),
        unusable_vendors=[gpu.vendor for gpu in found.unusable],
        is_limited=found.memory.is_limited,
        has_avx2=has_avx2(),
        swapped_bytes=psutil.swap_memory().used,
        repacking_is_safe=tested.is_safe,
        numa=choose_numa(settings.numa, numa_nodes(), affinity(), computes=True),
        engine_features=tested.features + (f", as {tested.variant}" if tested.variant else ""),
        disk_bytes_per_s=measure_disk_read(largest) if largest else None,
        known_problems=(
            *library_problems,
            *(Problem(folder.problem, folder.remedy) for folder in folders if folder.problem),
            *(Problem(folder.what, folder.remedy) for folder in find_external_models()[1]),
            *_environment_problems(),
        ),
        paths=(
            *((folder.what, str(folder.path)) for folder in folders),
            ("log", str(settings.cache_dir / LOG_NAME)),
            *_kept_texts(settings.cache_dir / CORPORA),
            *_draft_copies(settings.cache_dir / COPIES),
        ),
    )


def _kept_texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield where texts are that drafts are looked up in, and how much, where there are any."""
    if n_bytes := corpora_bytes(folder):
        yield "texts", f"{folder}, {format_bytes(n_bytes)} of files that chats read, for drafts"


def _draft_copies(folder: Path) -> Iterator[tuple[str, str]]:
    copies = sorted_glob(folder, "*.gguf")
    if copies:
        n_bytes = sum(path.stat().st_size for path in copies)
        yield "drafts", f"{folder} ({counted(len(copies), 'low-bit copy', 'low-bit copies')}, {format_memory(n_bytes)})"


def _environment_problems() -> Iterator[Problem]:
    """Yield what is wrong with the variables that decide how the hub is reached."""
    for check in (tls_context, environment_proxies, hub_access_from_environment):
        try:
            found = check()
        except UserError as error:
            yield Problem(error.cause, error.remedy)
        else:
            if isinstance(found, HubAccess) and found.notice:
                yield Problem(found.notice, "Correct its rights, or set HF_TOKEN.")


def describe_machine(findings: Findings) -> MachineReport:
    """Return the machine and its problems as they cross processes."""
    machine, problems = findings.machine, find_problems(findings)
    return MachineReport(
        rows=tuple(machine_rows(findings)),
        paths=tuple(findings.paths),
        problems=tuple(MachineProblem(problem.what, problem.next_step) for problem in problems),
        verdict="problems" if problems else "good",
        engine=findings.engine_version,
        devices=(machine.host, *machine.gpus),
        disk_bytes_per_s=findings.disk_bytes_per_s,
    )


def machine_rows(findings: Findings) -> list[tuple[str, str]]:
    """Return a label and a description of each part of the machine."""
    machine, disk = findings.machine, findings.disk_bytes_per_s
    gpus = []
    for gpu in machine.gpus:
        link = ""  # of a device of another machine
        if gpu.link_latency_s is not None and gpu.link_bytes_per_s is not None:
            link = f", reached in {gpu.link_latency_s * 1000:.1f} ms at {format_bandwidth(gpu.link_bytes_per_s)} GB/s"
        gpus.append((gpu.name, f"{gpu.description}, {_memory(gpu)}{link}"))
    return [
        ("processor", f"{cpu_model()}, {default_threads()} cores"),
        ("memory", _memory(machine.host)),
        *([("NUMA", f"{findings.numa.strategy}: {findings.numa.reason}")] if findings.numa else []),
        *(gpus or [("GPU", "none that this build of llama.cpp can use")]),
        ("models", f"read from disk at {disk / 1e6:,.0f} MB/s" if disk else "disk speed unknown"),
        ("engine", f"llama-cpp-python {findings.engine_version}"),
        ("backends", findings.engine_features or "unknown"),
    ]


def _is_readable(path: Path) -> bool:
    return is_file(path) and os.access(path, os.R_OK)


def _memory(device: Device) -> str:
    if not device.total_bytes:
        return "memory size unknown"
    pace = f"read at {format_bandwidth(device.bytes_per_s)} GB/s" if device.bytes_per_s else "speed unknown"
    return f"{format_memory(device.free_bytes)} of {format_memory(device.total_bytes)} free, {pace}"
