"""What the models of this machine come to on it, worked out once for each file and kept while it is as it was.

Owns the machine as it was looked at, and the verdicts. One thread at a time looks and reads; knows nothing of who asks.
What imports numbers is imported when it is first asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.library.local.index import LibraryEntry
from app.settings.settings import Settings
from quantizer.errors import UserError
from quantizer.gguf.validation import tensors_of, validate_gguf

if TYPE_CHECKING:
    from app.engine.load.machine import Survey
    from app.library.machine_fit.planning import Fit, PlanningContext

__all__ = ["FitCache"]


class FitCache:
    """Verdicts for the machine as it was at the first question, or when `forget` was called last.

    `look` finds out what the machine is (the engine does, where none is given); it takes about a second and may raise
    EngineError.
    """

    def __init__(self, settings: Settings, look: Callable[[Sequence[str]], Survey] | None = None) -> None:
        self._settings = settings
        self._look = look
        self._found: Survey | None = None
        self._here: PlanningContext | None = None
        self._fits: dict[Path, tuple[str, Fit | None]] = {}
        self._turn = threading.Lock()

    def machine(self) -> Survey:
        """Return the machine, looking at it first where nobody has. Raises EngineError where that fails."""
        with self._turn:
            return self._looked_at()

    def here(self) -> PlanningContext:
        """Return the same with how fast it is and how models are wanted on it. Raises as `machine` does."""
        from app.library.machine_fit.planning import local_planning_context

        with self._turn:
            if self._here is None:
                self._here = local_planning_context(self._settings, self._looked_at().machine)
            return self._here

    def forget(self) -> None:
        """Look at the machine anew at the next question: what is free may have changed."""
        with self._turn:
            self._found = self._here = None
            self._fits.clear()

    def _looked_at(self) -> Survey:
        from app.engine.load.machine import survey
        from app.settings.parsing import parse_rpc_endpoints

        if self._found is None:
            look = self._look or survey
            self._found = look(parse_rpc_endpoints(self._settings.rpc))
        return self._found

    def known(self, entry: LibraryEntry) -> Fit | None:
        """Return the verdict on a model whose file is as it was, None where there is none."""
        stamp, fit = self._fits.get(entry.ref.path, ("", None))
        return fit if stamp == entry.disk.stamp else None

    def is_known(self, entry: LibraryEntry) -> bool:
        """Whether `learn` has nothing to find out; of a damaged file there never is."""
        stamp, _ = self._fits.get(entry.ref.path, ("", None))
        return bool(entry.fault) or stamp == entry.disk.stamp

    def learn(self, entry: LibraryEntry) -> None:
        """Read the header of a model and keep the verdict; one that cannot be had is kept as none.

        Raises EngineError where the machine cannot be looked at.
        """
        here = self.here()
        self._fits[entry.ref.path] = (entry.disk.stamp, _fit(entry.ref.path, here))


def _fit(path: Path, here: PlanningContext) -> Fit | None:
    from offload.footprint.model import PlannedModel

    try:
        header = validate_gguf(path)
        return here.fit(PlannedModel(header, tensors_of(header)))
    except UserError:  # damaged since, or asked for with a cache that it cannot have: loading says so
        return None
