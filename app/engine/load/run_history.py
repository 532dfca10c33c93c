"""How fast models really ran here: `<cache>/runs.jsonl`, a line for each answer or prompt that shows it.

Owns that file. Lines are added under a lock, by whatever process has something to tell; the oldest go when it has grown
large. A line that was not written whole counts as none: everything in it can be measured again. Knows nothing of what
the runs are good for.

The rates of this machine: those to expect of it, refitted to how fast models really ran here.

The one place that everything asks which predicts a speed. Knows nothing of models.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, Literal

from offload.devices.cpu import cpu_name, default_threads
from offload.devices.machine import Machine
from offload.speed.calibration import PromptRun, Run, calibrated
from offload.speed.cost_model import Rates, Work, expected_rates
from quantizer.files import try_lock

__all__ = ["HISTORY_NAME", "RunHistory", "RunRecord", "calibrated_rates", "machine_key", "measured_runs", "run_history"]

HISTORY_NAME = "runs.jsonl"
_MAX_BYTES = 1 << 18  # some 500 runs
_N_ATTEMPTS, _ATTEMPT_S = 20, 0.01
_N_NEWEST = 5  # of a model at a depth, whose median counts
_DEPTH_STEP = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run on `machine` (see `rates.machine_key`) with `n_threads`: an answer behind `depth` tokens, or a prompt.

    `model` is its fingerprint. `work` is what a token made the devices do; `n_ubatch` counts for prompts. `at_s` is
    when it ended, in seconds since 1970, `gpu_layers` how many layers were on GPUs; 0 and None where that was not kept.
    """

    machine: str
    n_threads: int
    model: str
    kind: Literal["decode", "prefill"]
    depth: int
    tokens_per_s: float
    work: Work
    n_ubatch: int = 0
    at_s: float = 0.0
    gpu_layers: int | None = None


class RunHistory:
    """The file at `path`, which need not be there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, records: Iterable[RunRecord]) -> bool:
        """Append `records`; return False where they are not kept: the disk is full, or another process holds the file.

        Nothing is lost by that but knowledge that comes again.
        """
        lines = [json.dumps(asdict(record)).encode() + b"\n" for record in records]
        if not lines:
            return True
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b", buffering=0) as file:
                return _locked(file) and _append(file, b"".join(lines))
        except OSError:
            return False

    def records(self, machine: str = "") -> list[RunRecord]:
        """Return what is known of `machine` (empty: any), the oldest first; nothing where it cannot be read."""
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        return [record for record in _parsed(lines) if machine in ("", record.machine)]


def measured_runs(records: Sequence[RunRecord], n_threads: int) -> tuple[list[Run], list[PromptRun]]:
    """Return what the newest runs with `n_threads` say, one run for each model and depth. Pure.

    Medians count: whatever else the machine did meanwhile shows in single runs.
    """
    groups: dict[tuple[str, str, int], list[RunRecord]] = {}
    for record in records:
        if record.n_threads == n_threads:
            groups.setdefault((record.kind, record.model, record.depth // _DEPTH_STEP), []).append(record)
    runs: list[Run] = []
    prompts: list[PromptRun] = []
    for (kind, _, _), group in groups.items():
        newest, speed = group[-1], median(record.tokens_per_s for record in group[-_N_NEWEST:])
        if kind == "decode":
            runs.append(Run(newest.work, speed))
        else:
            prompts.append(PromptRun(newest.work, newest.n_ubatch, speed))
    return runs, prompts


def _locked(file: BinaryIO) -> bool:
    for _ in range(_N_ATTEMPTS):
        if try_lock(file):
            return True
        time.sleep(_ATTEMPT_S)
    return False


def _append(file: BinaryIO, added: bytes) -> bool:
    """Write whole lines at the end of a locked file, the oldest of which go when it has grown too large."""
    file.seek(0)
    known = file.read()
    if known and not known.endswith(b"\n"):
        added = b"\n" + added  # after a line that was not written whole
    if len(known) + len(added) > _MAX_BYTES:
        added = _newest(known + added)
        file.truncate(0)
    return file.write(added) == len(added)


def _newest(lines: bytes) -> bytes:
    """Return the last half of what a file may hold, whole lines only."""
    return lines[-_MAX_BYTES // 2 :].partition(b"\n")[2]


def _parsed(lines: Iterable[bytes]) -> Iterator[RunRecord]:
    for line in lines:
        try:
            fields: dict[str, Any] = json.loads(line)
            record = RunRecord(**fields | {"work": Work(**fields["work"])})
            is_sound = record.tokens_per_s > 0 and record.depth >= 0
        except (ValueError, TypeError, KeyError):
            continue
        if is_sound:
            yield record


def machine_key(machine: Machine) -> str:
    """Return a name for what decides how fast runs are here: build of llama.cpp, processor, GPUs."""
    parts = (
        metadata.version("llama-cpp-python"),
        cpu_name(),
        *(f"{gpu.name} {gpu.description}" for gpu in machine.gpus),
    )
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def run_history(cache_dir: Path) -> RunHistory:
    """Return the runs that were kept on this machine."""
    return RunHistory(cache_dir / HISTORY_NAME)


def calibrated_rates(machine: Machine, cache_dir: Path, n_threads: int = 0) -> Rates:
    """Return the rates of `machine`, which is this one, for `n_threads` (0: the physical cores)."""
    records = run_history(cache_dir).records(machine_key(machine))
    return calibrated(expected_rates(machine), *measured_runs(records, n_threads or default_threads()))
