"""How fast models ran on this machine: which answers are samples, `<cache>/runs.jsonl`, and the rates fitted to it.

A sample is an answer alone, without drafts, and long enough. Every process adds lines under a lock; the oldest are
dropped when the file is large. An incomplete line is ignored: everything in it can be measured again. Every prediction
of a speed uses `fitted_rates`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from app.engine.load.machine_file import model_key, this_build
from app.engine.load.type_tables import type_tables
from app.engine.messages import Finished
from app.engine.request import FinishReason, Request
from app.protocol.codec import decode_checked, encode
from app.protocol.plan import MeasuredRun
from offload.devices.host import CpuTimes, default_threads, is_quiet, others_share, read_cpu_times
from offload.devices.machine import HOST_NAME, Machine
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.shares import Placement, allocate, decode_work, prefill_work
from offload.speed.cost_model import Rates, Work, expected_rates
from offload.speed.rate_fitting import MeasuredSpeed, Run, estimate_speed, fit_rates
from quantizer.system.files import open_partial, private_folder, read_regular, try_lock

_MAX_BYTES = 1 << 18  # some 500 runs
_LOCK_TIMEOUT_S = 0.2
_LEAST_HOST_SHARE = 0.05  # of the bytes read; with less on the processors their load slows little
_DEPTH_STEP = 256
_MIN_OUTPUT_TOKENS = 24  # the time of a shorter answer depends on its begin and end
_MIN_PREFILL_TOKENS = 128
_MAX_PENDING = 64
_MAX_MEASURED_RUNS = 64  # that a plan shows
_CHANGED_THREADS = 0  # of a run whose number of threads followed the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run on `machine` (a `machine_key`) with `n_threads`, 0 where they changed meanwhile: the decode of an answer
    at `depth`, or a prefill.
    `model` is its fingerprint, `work` the work of the devices for a token; `n_ubatch` counts for prefill. `at_s` is its
    end in seconds since 1970, `gpu_layers` the number of layers on GPUs, `others_share` the share of the processors
    that other programs and the hypervisor took meanwhile; old records have 0 and None."""

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
                with open_partial(self._path, appends=True) as file:
                    added = b"".join(lines)
                    file.seek(0)
                    present = file.read()
                    if present and not present.endswith(b"\n"):
                        added = b"\n" + added  # after an incomplete line
                    if len(present) + len(added) > _MAX_BYTES:  # down to half of that: rewritten once in 250 runs
                        added = (present + added)[-_MAX_BYTES // 2 :].partition(b"\n")[2]  # whole lines only
                        file.truncate(0)
                    return file.write(added) == len(added)
            finally:
                lock.release()
        except OSError:
            return False

    def records(self, machine: str = "") -> list[RunRecord]:
        """Return the records of `machine` (empty: any), the oldest first; none when the file cannot be read."""
        try:
            lines = read_regular(self._path).splitlines()
        except OSError:
            return []
        found: list[RunRecord] = []
        for line in lines:
            with suppress(ValueError, RecursionError):  # an incomplete line, or one of another version
                record = decode_checked(RunRecord, json.loads(line))
                if record.tokens_per_s > 0 and record.depth >= 0 and machine in ("", record.machine):
                    found.append(record)
        return found


def measured_runs(records: Sequence[RunRecord], n_threads: int) -> tuple[list[Run], list[Run]]:
    """Return one decode run or prompt run for each model and depth with `n_threads`. Pure. Each is that of a quiet
    machine, if it was ever quiet (see `offload.speed.rate_fitting`)."""
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


def runs_of(path: Path, machine: Machine, cache_dir: Path) -> tuple[MeasuredRun, ...]:
    """Return the speeds of the newest answers and prompts of the model at `path` on `machine`, oldest first."""
    return runs_by_model(machine, cache_dir).get(model_key(path), ())


def runs_by_model(machine: Machine, cache_dir: Path) -> dict[str, tuple[MeasuredRun, ...]]:
    """Return `runs_of` all models that ran on `machine`, by their fingerprints."""
    found: dict[str, list[MeasuredRun]] = {}
    for record in RunHistory(cache_dir).records(machine_key(machine)):
        run = MeasuredRun(
            kind=record.kind,
            depth=record.depth,
            tps=round(record.tokens_per_s, 3),
            gpu_layers=record.gpu_layers,
            at_s=record.at_s,
            is_quiet=record.n_threads != _CHANGED_THREADS and is_quiet(_slowing_share(record)),
        )
        found.setdefault(record.model, []).append(run)
    return {model: tuple(runs[-_MAX_MEASURED_RUNS:]) for model, runs in found.items()}


def machine_key(machine: Machine) -> str:
    """Return a key of what decides the speed of a machine: build of llama.cpp, processor, GPUs."""
    parts = (
        this_build(),
        *(f"{gpu.name} {gpu.description}" for gpu in machine.gpus),
    )
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def fitted_rates(machine: Machine, cache_dir: Path, n_threads: int = 0) -> Rates:
    """Return the rates of `machine`, this one: what its types of weights were measured to take, fitted to its run
    history for `n_threads` (0: physical cores)."""
    records = RunHistory(cache_dir).records(machine_key(machine))
    expected = expected_rates(machine, type_tables(machine, cache_dir, n_threads))
    return fit_rates(expected, *measured_runs(records, n_threads or default_threads()))


@dataclass(frozen=True, slots=True)
class SpeedSample:
    """The speeds of one sample. `depth` is its mean number of tokens during decode, `n_cells` the cells then in use.
    `prefill_tps` is None when too little of the prompt was computed; `prefill_depth` is the length of the prompt.
    `others_share` is the share of the processors that others took meanwhile, None where too little time passed.
    `n_threads` computed it, 0 where they changed meanwhile, None where their number is fixed."""

    decode_tps: float
    depth: int
    n_cells: int
    prefill_tps: float | None
    prefill_depth: int
    others_share: float | None = None
    n_threads: int | None = None


class SpeedSampler:
    """A sampler over the requests of one engine; samples wait until `flush` passes them to `record`. `read_times` reads
    the load of the machine, at the begin and the end of an answer."""

    def __init__(
        self,
        record: Callable[[SpeedSample], None] = lambda _sample: None,
        read_times: Callable[[], CpuTimes] = read_cpu_times,
    ) -> None:
        self._record = record
        self._read_times = read_times
        self._begun = CpuTimes(0.0, 0.0, 0.0)
        self._n_threads: int | None = None
        self._alone: Request | None = None
        self._pending: deque[SpeedSample] = deque(maxlen=_MAX_PENDING)

    def begin(self, request: Request, *, is_alone: bool, n_threads: int | None = None) -> None:
        """Note a new `request`, which `n_threads` compute (None: always as many); only one that runs alone can become
        a sample."""
        # Grammars and log probabilities take time of their own.
        is_plain = not request.sampling.ends_by_grammar and request.n_logprobs is None
        self._alone = request if is_alone and is_plain else None
        if self._alone is not None:
            self._begun, self._n_threads = self._read_times(), n_threads

    def change_threads(self) -> None:
        """Note that another number of threads computes from now on: others leave less of the machine, or more."""
        self._n_threads = _CHANGED_THREADS

    def disturb(self) -> None:
        self._alone = None

    def end(self, finished: Finished, n_cells_used: int) -> None:
        """Note the end of an answer, with the cells of the cache that are in use."""
        request, self._alone = self._alone, None
        if request is None or request.request_id != finished.request_id:
            return
        usage = finished.usage
        is_whole = finished.reason in (FinishReason.STOP, FinishReason.LENGTH) and not usage.n_dropped_tokens
        if not is_whole or usage.n_output_tokens < _MIN_OUTPUT_TOKENS or usage.n_drafted_tokens:
            return
        timings, half = finished.timings, usage.n_output_tokens // 2
        n_computed = usage.n_prompt_tokens - usage.n_cached_tokens
        if timings.decode_s <= 0:  # the clock is too coarse for this answer
            return
        has_prefill = n_computed >= _MIN_PREFILL_TOKENS and not usage.n_cached_tokens and timings.prefill_s > 0
        self._pending.append(
            SpeedSample(
                decode_tps=(usage.n_output_tokens - 1) / timings.decode_s,
                depth=usage.n_prompt_tokens + half,
                n_cells=max(usage.n_prompt_tokens + half, n_cells_used - half),
                prefill_tps=n_computed / timings.prefill_s if has_prefill else None,
                prefill_depth=n_computed,
                others_share=others_share(self._begun, self._read_times()),
                n_threads=self._n_threads,
            )
        )

    def flush(self) -> None:
        """Record the pending samples; called when no request waits."""
        while self._pending:
            self._record(self._pending.popleft())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecorder:
    """A recorder of the samples of `model`, whose weights have the `fingerprint`. It runs on `devices` with `placement`
    and `setting`. `now_s` returns the seconds since 1970."""

    history: RunHistory
    n_threads: int
    fingerprint: str
    model: PlannedModel
    setting: RunConfig
    devices: Machine
    placement: Placement
    now_s: Callable[[], float] = time.time

    def record(self, sample: SpeedSample) -> None:
        # attention that is not fused computes the cells of other sequences too
        depth = sample.depth if self.setting.is_fused else sample.n_cells
        profile = self.model.profile(replace(self.setting, depth=depth))
        shares = allocate(profile, self.devices, self.placement)
        decode = RunRecord(
            machine=machine_key(self.devices),
            # A speed with fewer threads says nothing about one with all of them: only those of its own are compared.
            n_threads=self.n_threads if sample.n_threads is None else sample.n_threads,
            model=self.fingerprint,
            kind="decode",
            depth=depth,
            tokens_per_s=sample.decode_tps,
            work=decode_work(shares, self.placement),
            at_s=self.now_s(),
            gpu_layers=self.placement.n_on_gpus,
            others_share=sample.others_share,
        )
        records = [decode]
        if sample.prefill_tps is not None:
            reading = self.model.profile(replace(self.setting, n_prompt=sample.prefill_depth))
            prefill = replace(
                decode,
                kind="prefill",
                depth=sample.prefill_depth,
                tokens_per_s=sample.prefill_tps,
                work=prefill_work(reading, shares, self.placement),
                n_ubatch=self.setting.n_ubatch,
            )
            records.append(prefill)
        self.history.add(records)
