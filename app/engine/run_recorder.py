"""Clean answers of one loaded model, kept as runs of this machine: with what each token made the devices do.

Owns the translation. Knows nothing of which answers are clean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from app.engine.rates import machine_key
from app.engine.run_history import RunHistory, RunRecord
from app.engine.witness import CleanAnswer
from offload.allocation import allocate, decode_work, prefill_work
from offload.machine import Machine
from offload.model import PlannedModel
from offload.placement import Placement
from offload.profile import Setting

__all__ = ["RunRecorder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecorder:
    """`fingerprint` names the weights of `model`, which lies on `devices` as `placement` says, under `setting`.

    `now_s` tells the seconds since 1970.
    """

    history: RunHistory
    n_threads: int
    fingerprint: str
    model: PlannedModel
    setting: Setting
    devices: Machine
    placement: Placement
    now_s: Callable[[], float] = time.time

    def keep(self, answer: CleanAnswer) -> None:
        """Keep one answer, and its prompt where that shows something."""
        self.history.add(self._records(answer))

    def _records(self, answer: CleanAnswer) -> Iterator[RunRecord]:
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
