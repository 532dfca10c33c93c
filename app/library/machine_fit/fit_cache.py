"""A cache of how the local models fit on this machine, valid while their files are unchanged.

Owns the survey of the machine and the fits. One thread at a time surveys and reads. Heavy modules are imported on first
use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.library.local.index import LibraryEntry
from app.settings.settings import Settings
from quantizer.errors import UserError

if TYPE_CHECKING:
    from app.engine.load.machine import Survey
    from app.library.machine_fit.planning import PlanningContext
    from app.protocol.library import ModelFit

__all__ = ["FitCache"]


class FitCache:
    """Fits for the machine as it was at first use, or after the last call of `forget`.

    `survey` finds the machine's devices (the engine's own without it); it takes a second and may raise EngineError.
    """

    def __init__(self, settings: Settings, survey: Callable[[Sequence[str]], Survey] | None = None) -> None:
        self._settings = settings
        self._survey = survey
        self._found: Survey | None = None
        self._here: PlanningContext | None = None
        self._fits: dict[Path, tuple[str, ModelFit | None]] = {}
        self._lock = threading.RLock()

    def machine(self) -> Survey:
        """Return the machine, surveying it if necessary. Raises EngineError if that fails."""
        from app.engine.load.machine import survey
        from app.settings.parsing import parse_rpc_endpoints

        with self._lock:
            if self._found is None:
                look = self._survey or survey
                self._found = look(parse_rpc_endpoints(self._settings.rpc))
            return self._found

    def here(self) -> PlanningContext:
        """Return the planning context of the machine and the settings. Raises as `machine` does."""
        from app.library.machine_fit.planning import local_planning_context

        with self._lock:
            if self._here is None:
                self._here = local_planning_context(self._settings, self.machine().machine)
            return self._here

    def forget(self) -> None:
        """Survey the machine again on next use: its free memory may have changed."""
        with self._lock:
            self._found = self._here = None
            self._fits.clear()

    def get(self, entry: LibraryEntry) -> ModelFit | None:
        """Return the fit of a model whose file is unchanged, None without one."""
        stamp, fit = self._fits.get(entry.ref.path, ("", None))
        return fit if stamp == entry.disk.stamp else None

    def has(self, entry: LibraryEntry) -> bool:
        """Return whether `compute` has been called for the unchanged file, or would find it damaged."""
        stamp, _ = self._fits.get(entry.ref.path, ("", None))
        return bool(entry.fault) or stamp == entry.disk.stamp

    def compute(self, entry: LibraryEntry) -> None:
        """Read the header of a model and store its fit, or None if it has none.

        Raises EngineError if the machine cannot be surveyed.
        """
        here = self.here()
        self._fits[entry.ref.path] = (entry.disk.stamp, _fit(entry.ref.path, here))


def _fit(path: Path, here: PlanningContext) -> ModelFit | None:
    from offload.footprint.model import PlannedModel

    try:
        return here.fit(PlannedModel.read(path))
    except UserError:  # damaged meanwhile, or an unsupported cache type: loading reports that
        return None
