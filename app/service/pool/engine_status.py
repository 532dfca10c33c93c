"""The state of one engine, and when restarting it has become pointless. Pure but for the clock of the limit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from app.engine.protocol.messages import BackendFacts
from app.protocol.library import ModelState
from app.protocol.plan import Plan
from app.protocol.status import LoadedSetting
from quantizer.system.errors import EngineError, UserError

_UNFIT = ("partial", "wont_run")  # verdicts of a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """The state of an engine. `plan` is what loading follows.

    `facts` and `settings` are those of the loaded model; `error` is set when `state` is "failed". An "unloaded" engine
    loads its model with the next use.
    """

    state: ModelState = "loading"
    progress: float = 0.0
    notices: tuple[str, ...] = ()
    plan: Plan | None = None
    facts: BackendFacts | None = None
    settings: tuple[LoadedSetting, ...] = ()
    error: UserError | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The planner's advice for a model that is partly or wholly misplaced: the cost, and what helps most."""
        if self.plan is None or self.plan.verdict not in _UNFIT:
            return ()
        helps = tuple(f"What would help: {remedy.what}." for remedy in self.plan.remedies[:1])
        return (*self.plan.warnings[:1], *helps)


class CrashLimit:
    """Counts failures: `max_failures` within `window_s` seconds, with no finished answer between, are too many."""

    def __init__(
        self, max_failures: int = 3, window_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_failures = max_failures
        self.window_s = window_s
        self._clock = clock
        self._failures_s: deque[float] = deque(maxlen=max_failures)

    def record_failure(self) -> None:
        self._failures_s.append(self._clock())

    def record_success(self) -> None:
        self._failures_s.clear()

    @property
    def is_reached(self) -> bool:
        """True until the window has moved past the oldest of the counted failures."""
        return len(self._failures_s) == self.max_failures and self._clock() - self._failures_s[0] < self.window_s

    def explained(self, error: UserError) -> UserError:
        """Return `error`, the last failure, with the reason why nothing is retried where the limit is reached."""
        if not self.is_reached:
            return error
        cause = f"The engine failed {self.max_failures} times within a minute. {error.cause}"
        return EngineError(cause, "Try a smaller --ctx or another model; a new attempt is possible in a minute.")
