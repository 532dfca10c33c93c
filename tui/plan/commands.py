"""The command table of the plan screen.

Owns ids, keys and texts. The implementations are methods of the screen, typed as `PlanActions`. No key has priority
over the controls: a change before L must apply to L.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from tui.commands import Command, CommandTable

__all__ = ["PLAN_COMMANDS", "PlanActions"]


class PlanActions(Protocol):
    """The methods of the plan screen that its commands call."""

    def load_plan(self) -> Awaitable[None]: ...

    def reset_plan(self) -> None: ...

    def ask_for_model(self) -> None: ...

    def ask_for_machine(self) -> None: ...

    def rescan(self) -> None: ...


PLAN_COMMANDS: CommandTable[Any] = CommandTable(
    (
        Command[PlanActions](
            id="plan-load",
            title="Load it so",
            tooltip="Load the model as planned here: says what will happen first, and does it at the second time",
            keys="l",
            has_priority=False,
            is_shown=True,
            run=lambda screen, _: screen.load_plan(),
        ),
        Command[PlanActions](
            id="plan-automatic",
            title="Planner's own",
            tooltip="Give every dial back to the planner",
            keys="a",
            has_priority=False,
            is_shown=True,
            run=lambda screen, _: screen.reset_plan(),
        ),
        Command[PlanActions](
            id="plan-model",
            title="Model",
            tooltip="Plan another model: a name, a path, or org/repo:QUANT of the hub before any download",
            keys="m",
            has_priority=False,
            is_shown=True,
            run=lambda screen, _: screen.ask_for_model(),
        ),
        Command[PlanActions](
            id="plan-machine",
            title="What if",
            tooltip="Plan for another machine, such as RTX 3060=12GiB; nothing is this machine again",
            keys="w",
            has_priority=False,
            is_shown=True,
            run=lambda screen, _: screen.ask_for_machine(),
        ),
        Command[PlanActions](
            id="plan-look",
            title="Look again",
            tooltip="Look at this machine's memory again and plan anew",
            keys="r",
            has_priority=False,
            run=lambda screen, _: screen.rescan(),
        ),
    )
)
