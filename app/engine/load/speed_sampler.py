"""Which answers show how fast a model runs: those that were answered alone, without drafts, and long enough.

Owns that judgement, over the frames that an engine takes and gives. Knows nothing of what is done with such answers.

Clean answers of one loaded model, kept as runs of this machine: with what each token made the devices do.

Owns the translation. Knows nothing of which answers are clean.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from app.engine.load.run_history import RunHistory, RunRecord, machine_key
from app.engine.protocol.messages import Finished
from app.engine.request import FinishReason, Request
from offload.devices.machine import Machine
from offload.footprint.model import PlannedModel
from offload.footprint.profile import RunConfig
from offload.placement.allocation import allocate, decode_work, prefill_work
from offload.placement.search import Placement

__all__ = ["RunRecorder", "SpeedSample", "SpeedSampler"]

_LEAST_OUTPUT = 24  # tokens: the clock of a shorter answer says more of its begin and end
_LEAST_PREFILL = 128
_MOST_WAITING = 64


@dataclass(frozen=True, slots=True)
class SpeedSample:
    """Speeds of one answer. Halfway it stood behind `depth` tokens of its own, and `n_cells` were in use.

    `prefill_tps` is None where too little of the prompt was computed; `prefill_depth` is how long the prompt was.
    """

    decode_tps: float
    depth: int
    n_cells: int
    prefill_tps: float | None
    prefill_depth: int


class SpeedSampler:
    """Sees the requests and the ends of one engine; what is clean is given to `keep` when there is time for it."""

    def __init__(self, keep: Callable[[SpeedSample], None] = lambda _answer: None) -> None:
        self._keep = keep
        self._alone: Request | None = None
        self._waiting: deque[SpeedSample] = deque(maxlen=_MOST_WAITING)

    def begin(self, request: Request, *, is_alone: bool) -> None:
        """See `request` come, while nothing else is computed or not."""
        self._alone = request if is_alone and _is_plain(request) else None

    def disturb(self) -> None:
        """See that something else is computed meanwhile."""
        self._alone = None

    def end(self, finished: Finished, n_cells_used: int) -> None:
        """See how an answer ended, and how many cells of the cache are in use then."""
        request, self._alone = self._alone, None
        if request is None or request.request_id != finished.request_id:
            return
        usage = finished.usage
        is_whole = finished.reason in (FinishReason.STOP, FinishReason.LENGTH) and not usage.n_dropped_tokens
        if is_whole and usage.n_output_tokens >= _LEAST_OUTPUT and not usage.n_drafted_tokens:
            self._see(finished, n_cells_used)

    def flush(self) -> None:
        """Give away what was seen, now that nobody waits."""
        while self._waiting:
            self._keep(self._waiting.popleft())

    def _see(self, finished: Finished, n_cells_used: int) -> None:
        usage, timings = finished.usage, finished.timings
        n_computed = usage.n_prompt_tokens - usage.n_cached_tokens
        if timings.decode_s <= 0:  # a clock that is coarser than the answer
            return
        says_prefill = n_computed >= _LEAST_PREFILL and not usage.n_cached_tokens and timings.prefill_s > 0
        half = usage.n_output_tokens // 2
        answer = SpeedSample(
            decode_tps=(usage.n_output_tokens - 1) / timings.decode_s,
            depth=usage.n_prompt_tokens + half,
            n_cells=max(usage.n_prompt_tokens + half, n_cells_used - half),
            prefill_tps=n_computed / timings.prefill_s if says_prefill else None,
            prefill_depth=n_computed,
        )
        self._waiting.append(answer)


def _is_plain(request: Request) -> bool:
    """Whether the model is all that takes time: no grammar, no probabilities."""
    return not request.sampling.grammar and request.n_logprobs is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecorder:
    """`fingerprint` names the weights of `model`, which lies on `devices` as `placement` says, under `setting`.

    `now_s` tells the seconds since 1970.
    """

    history: RunHistory
    n_threads: int
    fingerprint: str
    model: PlannedModel
    setting: RunConfig
    devices: Machine
    placement: Placement
    now_s: Callable[[], float] = time.time

    def keep(self, answer: SpeedSample) -> None:
        """Keep one answer, and its prompt where that shows something."""
        self.history.add(self._records(answer))

    def _records(self, answer: SpeedSample) -> Iterator[RunRecord]:
        # attention that is not fused computes what others hold too
        depth = answer.depth if self.setting.is_fused else answer.n_cells
        profile = self.model.profile(replace(self.setting, depth=depth))
        shares = allocate(profile, self.devices, self.placement)
        record = RunRecord(
            machine=machine_key(self.devices),
            n_threads=self.n_threads,
            model=self.fingerprint,
            kind="decode",
            depth=depth,
            tokens_per_s=answer.decode_tps,
            work=decode_work(shares, self.placement),
            at_s=self.now_s(),
            gpu_layers=self.placement.n_on_gpus,
        )
        yield record
        if answer.prefill_tps is not None:
            yield replace(
                record,
                kind="prefill",
                depth=answer.prefill_depth,
                tokens_per_s=answer.prefill_tps,
                work=prefill_work(shares, self.placement),
                n_ubatch=self.setting.n_ubatch,
            )
