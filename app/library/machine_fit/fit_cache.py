"""A cache of how the local models fit on this machine, valid while their files are unchanged.

Owns the survey of the machine and the fits, and when both are made anew: once the machine is quiet, if it was not, and
once answers taught it other speeds. One thread at a time surveys and reads. Heavy modules are imported on first use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.library.local.index import LibraryEntry
from app.settings.parsing import parse_rpc_endpoints
from app.settings.settings import Settings
from offload.devices.host import CpuTimes, is_quiet, others_share, read_cpu_times
from quantizer.system.errors import UserError

if TYPE_CHECKING:
    from app.engine.load.machine import Survey
    from app.library.machine_fit.planning import PlanningContext
    from app.protocol.library import ModelFit
    from app.protocol.plan import MeasuredRun
    from offload.speed.cost_model import Rates


_LOOK_S = 2.0  # of all processors together, before their load is known well enough
_NOTABLE = 0.05  # relative difference of rates that a person notices in predictions


@dataclass(frozen=True, slots=True)
class _Fitted:
    """The fit of a file as it was at `stamp`, None without one, and the `fingerprint` that its runs are found by."""

    stamp: str
    fit: ModelFit | None
    fingerprint: str


class FitCache:
    """Fits for the machine as it was at first use, or after the last call of `forget`. `survey` finds the machine's
    devices (the engine's own without it); it takes a second and may raise EngineError."""

    def __init__(
        self,
        settings: Settings,
        survey: Callable[[Sequence[str]], Survey] | None = None,
        read_times: Callable[[], CpuTimes] = read_cpu_times,
    ) -> None:
        self._settings = settings
        self._survey = survey
        self._read_times = read_times
        self._times: CpuTimes | None = None  # when the load was last looked at
        self._runs_stamp = 0
        self._found: Survey | None = None
        self._here: PlanningContext | None = None
        self._fits: dict[Path, _Fitted] = {}
        self._runs: dict[str, tuple[MeasuredRun, ...]] = {}  # of all models, by their fingerprints
        self._lock = threading.RLock()

    def machine(self) -> Survey:
        """Return the machine, surveying it if necessary. Raises EngineError if that fails."""
        from app.engine.load.machine import survey

        with self._lock:
            if self._found is None:
                # what a busy machine measured must not count once it is quiet
                look = self._survey or partial(survey, cache_dir=self._settings.cache_dir, memory_speed="quiet")
                self._found = look(parse_rpc_endpoints(self._settings.rpc))
            return self._found

    def here(self) -> PlanningContext:
        """Return the planning context of the machine and the settings. Raises as `machine` does."""
        from app.engine.load.run_history import runs_by_model
        from app.library.machine_fit.planning import local_planning_context

        with self._lock:
            if self._here is None:
                self._runs_stamp = self._stamp_of_runs()
                self._here = local_planning_context(self._settings, self.machine().machine)
                self._runs = runs_by_model(self._here.machine, self._settings.cache_dir)
            return self._here

    def forget(self) -> None:
        """Survey the machine again on next use: its free memory may have changed."""
        with self._lock:
            self._found = self._here = None
            self._fits.clear()

    def renew(self) -> None:
        """Forget a survey of a busy machine once it is quiet, fits by speeds that have been measured since, and those
        of models that have answered since."""
        from app.engine.load.run_history import fitted_rates, runs_by_model

        if not self._lock.acquire(blocking=False):  # a survey is under way: the caller must not wait for it
            return
        try:
            if self._found is not None and not self._found.is_certain and self._has_become_quiet():
                self.forget()
            stamp = self._stamp_of_runs()
            if self._here is not None and stamp != self._runs_stamp:
                self._runs_stamp = stamp
                rates = fitted_rates(self._here.machine, self._settings.cache_dir, self._settings.threads)
                former, self._runs = self._runs, runs_by_model(self._here.machine, self._settings.cache_dir)
                for path, fitted in tuple(self._fits.items()):
                    if self._runs.get(fitted.fingerprint) != former.get(fitted.fingerprint):
                        self._fits.pop(path, None)
                if _differ(rates, self._here.rates):
                    self._here = replace(self._here, rates=rates)
                    self._fits.clear()
        finally:
            self._lock.release()

    def _has_become_quiet(self) -> bool:
        """Return whether the processors were idle since the last call, if that was long enough ago to tell."""
        now, before = self._read_times(), self._times
        if before is not None and now.total_s - before.total_s < _LOOK_S:
            return False
        self._times = now
        return before is not None and is_quiet(others_share(before, now))

    def _stamp_of_runs(self) -> int:
        stamps = []
        for name in ("runs.jsonl", "types.json"):
            with suppress(OSError):  # nothing was measured yet
                stamps.append((self._settings.cache_dir / name).stat().st_mtime_ns)
        return max(stamps, default=0)

    def get(self, entry: LibraryEntry) -> ModelFit | None:
        """Return the fit of a model whose file is unchanged, None without one."""
        fitted = self._fits.get(entry.ref.path)
        return fitted.fit if fitted is not None and fitted.stamp == entry.disk.stamp else None

    def has(self, entry: LibraryEntry) -> bool:
        """Return whether `compute` has been called for the unchanged file, or would find it damaged."""
        fitted = self._fits.get(entry.ref.path)
        return bool(entry.fault) or (fitted is not None and fitted.stamp == entry.disk.stamp)

    def compute(self, entry: LibraryEntry) -> None:
        """Read the header of a model and store its fit, or None if it has none. Raises EngineError if the machine
        cannot be surveyed."""
        from app.engine.load.machine_file import model_key
        from offload.footprint.model import PlannedModel

        here, fit, fingerprint = self.here(), None, ""
        with suppress(UserError, OSError):  # damaged or gone meanwhile, or an unsupported cache type: loading tells
            model = PlannedModel.read(entry.ref.path)
            fingerprint = model_key(entry.ref.path)
            fit = here.fit(model, self._runs.get(fingerprint, ()))
        self._fits[entry.ref.path] = _Fitted(entry.disk.stamp, fit, fingerprint)


def _differ(one: Rates, other: Rates) -> bool:
    """Return whether predictions by the rates differ by more than a person would notice."""
    if one.tables != other.tables:  # types were measured, which happens once
        return True
    pairs = [(one.seconds_per_byte[name], other.seconds_per_byte[name]) for name in other.seconds_per_byte]
    pairs += [(one.attention_seconds_per_byte, other.attention_seconds_per_byte), (one.fixed_s, other.fixed_s)]
    return abs(one.uncertainty - other.uncertainty) > _NOTABLE or any(abs(a / b - 1) > _NOTABLE for a, b in pairs)
