"""How far an engine is: what loading follows, what there is to tell of it, and how it ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from app.engine.protocol.messages import LoadProgress, Notice, Planned, Ready
from quantizer.errors import UserError

__all__ = ["EngineStatus", "StatusUpdate", "after"]

_UNFIT = ("partial", "wont_run")  # verdicts of a plan: some of it is elsewhere than where it is fast, or nowhere
StatusUpdate = LoadProgress | Notice | Planned | Ready


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """What is known of an engine. `plan` is what loading follows, the object of `localllm plan --json`.

    `ready` describes the loaded model, `error` is set when `state` is "failed".

    One that is "unloaded" loads its model when somebody asks.
    """

    state: Literal["loading", "ready", "failed", "unloaded"] = "loading"
    progress: float = 0.0
    notices: tuple[str, ...] = ()
    plan: dict[str, Any] | None = None
    ready: Ready | None = None
    error: UserError | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The planner's advice where the model does not lie as it should: what that costs, and what would help most."""
        if self.plan is None or self.plan["verdict"] not in _UNFIT:
            return ()
        helps = tuple(f"What would help: {remedy['what']}." for remedy in self.plan["remedies"][:1])
        return (*self.plan["warnings"][:1], *helps)


def after(status: EngineStatus, news: StatusUpdate) -> EngineStatus:
    """Return what is known once the worker has told `news`."""
    match news:
        case LoadProgress():
            return replace(status, progress=news.fraction)
        case Notice():
            return replace(status, notices=(*status.notices, news.text))
        case Planned():
            return replace(status, plan=news.plan)
        case Ready():
            return replace(status, state="ready", progress=1.0, ready=news)
