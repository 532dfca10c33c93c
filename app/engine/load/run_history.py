"""The speeds of models on this machine: `<cache>/runs.jsonl`, a line for each sample, and the rates fitted to them.

Owns that file. Every process adds lines under a lock; the oldest are dropped when it is large. An incomplete line is
ignored: everything in it can be measured again. Every prediction of a speed uses `fitted_rates`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, Literal

from app.protocol.codec import decode, encode
from offload.devices.cpu import cpu_name, default_threads
from offload.devices.machine import HOST_NAME, Machine
from offload.speed.cost_model import Rates, Work, expected_rates
from offload.speed.rate_fitting import Run, fit_rates
from offload.speed.run_selection import MeasuredSpeed, estimate_speed
from quantizer.system.files import private_folder, try_lock

_MAX_BYTES = 1 << 18  # some 500 runs
_LOCK_TIMEOUT_S = 0.2
_LEAST_HOST_SHARE = 0.05  # of the bytes read; with less on the processors their load slows little
_DEPTH_STEP = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run on `machine` (a `machine_key`) with `n_threads`: the decode of an answer at `depth`, or a prefill.

    `model` is its fingerprint, `work` the work of the devices for a token; `n_ubatch` counts for prefill. `at_s` is its
    end in seconds since 1970, `gpu_layers` the number of layers on GPUs, `others_share` the share of the processors
    that other programs and the hypervisor took meanwhile; old records have 0 and None.
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
    others_share: float | None = None


class RunHistory:
    """The runs of this machine in a file of `cache_dir`, which may be missing."""

    def __init__(self, cache_dir: Path) -> None:
        self._path = cache_dir / "runs.jsonl"

    def add(self, records: Iterable[RunRecord]) -> bool:
        """Append `records`. Return False when the disk is full or another process locks the file; no harm is done."""
        lines = [json.dumps(encode(record)).encode() + b"\n" for record in records]
        if not lines:
            return True
        try:
            private_folder(self._path.parent)
            lock = try_lock(self._path.with_suffix(".lock"), _LOCK_TIMEOUT_S)
            if lock is None:
                return False
            try:
                with self._path.open("a+b", buffering=0) as file:
                    return _append(file, b"".join(lines))
            finally:
                lock.release()
        except OSError:
            return False

    def records(self, machine: str = "") -> list[RunRecord]:
        """Return the records of `machine` (empty: any), the oldest first; none when the file cannot be read."""
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        return [record for record in _parsed(lines) if machine in ("", record.machine)]


def measured_runs(records: Sequence[RunRecord], n_threads: int) -> tuple[list[Run], list[Run]]:
    """Return one decode run or prompt run for each model and depth with `n_threads`. Pure.

    Each is that of a quiet machine, if it was ever quiet (see `offload.speed.run_selection`).
    """
    groups: dict[tuple[str, str, int], list[RunRecord]] = {}
    for record in records:
        if record.n_threads == n_threads:
            groups.setdefault((record.kind, record.model, record.depth // _DEPTH_STEP), []).append(record)
    runs: list[Run] = []
    prompts: list[Run] = []
    for (kind, _, _), group in groups.items():
        found = estimate_speed([MeasuredSpeed(record.tokens_per_s, _slowing_share(record)) for record in group])
        run = Run(group[-1].work, found.tokens_per_s, weight=found.weight, spread=found.spread)
        if kind == "decode":
            runs.append(run)
        else:
            prompts.append(replace(run, n_ubatch=group[-1].n_ubatch))
    return runs, prompts


def _slowing_share(record: RunRecord) -> float | None:
    """Return the share that others took of the processors, if those had a part of the work that counts."""
    n_bytes = sum(record.work.read_bytes.values())
    on_host = record.work.read_bytes.get(HOST_NAME, 0.0) + record.work.attention_bytes
    return record.others_share if on_host > _LEAST_HOST_SHARE * n_bytes else 0.0


def _append(file: BinaryIO, added: bytes) -> bool:
    """Append lines to a locked file; the oldest lines are dropped when it is too large, down to half of the limit."""
    file.seek(0)
    present = file.read()
    if present and not present.endswith(b"\n"):
        added = b"\n" + added  # after an incomplete line
    if len(present) + len(added) > _MAX_BYTES:
        added = (present + added)[-_MAX_BYTES // 2 :].partition(b"\n")[2]  # whole lines only
        file.truncate(0)
    return file.write(added) == len(added)


def _parsed(lines: Iterable[bytes]) -> Iterator[RunRecord]:
    for line in lines:
        try:
            record = decode(RunRecord, json.loads(line))
            is_valid = record.tokens_per_s > 0 and record.depth >= 0
        except (ValueError, TypeError, KeyError):
            continue
        if is_valid:
            yield record


def machine_key(machine: Machine) -> str:
    """Return a key of what decides the speed of a machine: build of llama.cpp, processor, GPUs."""
    parts = (
        metadata.version("llama-cpp-python"),
        cpu_name(),
        *(f"{gpu.name} {gpu.description}" for gpu in machine.gpus),
    )
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def fitted_rates(machine: Machine, cache_dir: Path, n_threads: int = 0) -> Rates:
    """Return the rates of `machine`, this one, fitted to its run history for `n_threads` (0: physical cores)."""
    records = RunHistory(cache_dir).records(machine_key(machine))
    return fit_rates(expected_rates(machine), *measured_runs(records, n_threads or default_threads()))
