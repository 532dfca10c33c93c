"""Samples of how fast a loaded model runs, and their records in the run history of this machine.

Owns which answers are samples (alone, without drafts, long enough), how busy the machine was, and the work of the
devices for one token of them. Independent of what the records are used for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from app.engine.load.run_history import RunHistory, RunRecord, machine_key
from app.engine.protocol.messages import Finished
from app.engine.request import FinishReason, Request
from offload.devices.cpu_load import CpuTimes, others_share, read_cpu_times
from offload.devices.machine import Machine
from offload.footprint.model import PlannedModel
from offload.footprint.profile import RunConfig
from offload.placement.allocation import allocate, decode_work, prefill_work
from offload.placement.search import Placement

_MIN_OUTPUT_TOKENS = 24  # the time of a shorter answer depends on its begin and end
_MIN_PREFILL_TOKENS = 128
_MAX_PENDING = 64


@dataclass(frozen=True, slots=True)
class SpeedSample:
    """The speeds of one sample. `depth` is its mean number of tokens during decode, `n_cells` the cells then in use.

    `prefill_tps` is None when too little of the prompt was computed; `prefill_depth` is the length of the prompt.
    `others_share` is the share of the processors that others took meanwhile, None where too little time passed.
    """

    decode_tps: float
    depth: int
    n_cells: int
    prefill_tps: float | None
    prefill_depth: int
    others_share: float | None = None


class SpeedSampler:
    """A sampler over the requests of one engine; samples wait until `flush` passes them to `record`.

    `read_times` reads the load of the machine, at the begin and the end of an answer.
    """

    def __init__(
        self,
        record: Callable[[SpeedSample], None] = lambda _sample: None,
        read_times: Callable[[], CpuTimes] = read_cpu_times,
    ) -> None:
        self._record = record
        self._read_times = read_times
        self._begun = CpuTimes(0.0, 0.0, 0.0)
        self._alone: Request | None = None
        self._pending: deque[SpeedSample] = deque(maxlen=_MAX_PENDING)

    def begin(self, request: Request, *, is_alone: bool) -> None:
        """Note a new `request`; only one that runs alone can become a sample."""
        is_plain = not request.sampling.ends_by_grammar and request.n_logprobs is None  # then only the model takes time
        self._alone = request if is_alone and is_plain else None
        if self._alone is not None:
            self._begun = self._read_times()

    def disturb(self) -> None:
        """Note that something else is computed too."""
        self._alone = None

    def end(self, finished: Finished, n_cells_used: int) -> None:
        """Note the end of an answer, with the cells of the cache that are in use."""
        request, self._alone = self._alone, None
        if request is None or request.request_id != finished.request_id:
            return
        usage = finished.usage
        is_whole = finished.reason in (FinishReason.STOP, FinishReason.LENGTH) and not usage.n_dropped_tokens
        if is_whole and usage.n_output_tokens >= _MIN_OUTPUT_TOKENS and not usage.n_drafted_tokens:
            self._add(finished, n_cells_used)

    def flush(self) -> None:
        """Record the pending samples; called when no request waits."""
        while self._pending:
            self._record(self._pending.popleft())

    def _add(self, finished: Finished, n_cells_used: int) -> None:
        usage, timings = finished.usage, finished.timings
        n_computed = usage.n_prompt_tokens - usage.n_cached_tokens
        if timings.decode_s <= 0:  # the clock is too coarse for this answer
            return
        has_prefill = n_computed >= _MIN_PREFILL_TOKENS and not usage.n_cached_tokens and timings.prefill_s > 0
        half = usage.n_output_tokens // 2
        sample = SpeedSample(
            decode_tps=(usage.n_output_tokens - 1) / timings.decode_s,
            depth=usage.n_prompt_tokens + half,
            n_cells=max(usage.n_prompt_tokens + half, n_cells_used - half),
            prefill_tps=n_computed / timings.prefill_s if has_prefill else None,
            prefill_depth=n_computed,
            others_share=others_share(self._begun, self._read_times()),
        )
        self._pending.append(sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecorder:
    """A recorder of the samples of `model`, whose weights have the `fingerprint`.

    It runs on `devices` with `placement` and `setting`. `now_s` returns the seconds since 1970.
    """

    history: RunHistory
    n_threads: int
    fingerprint: str
    model: PlannedModel
    setting: RunConfig
    devices: Machine
    placement: Placement
    now_s: Callable[[], float] = time.time

    def record(self, sample: SpeedSample) -> None:
        """Store the decode of a sample, and its prefill if it has one."""
        # attention that is not fused computes the cells of other sequences too
        depth = sample.depth if self.setting.is_fused else sample.n_cells
        profile = self.model.profile(replace(self.setting, depth=depth))
        shares = allocate(profile, self.devices, self.placement)
        decode = RunRecord(
            machine=machine_key(self.devices),
            n_threads=self.n_threads,
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
            prefill = replace(
                decode,
                kind="prefill",
                depth=sample.prefill_depth,
                tokens_per_s=sample.prefill_tps,
                work=prefill_work(shares, self.placement),
                n_ubatch=self.setting.n_ubatch,
            )
            records.append(prefill)
        self.history.add(records)
