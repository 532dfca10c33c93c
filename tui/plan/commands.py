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
            tooltip="Load the model with this plan; the second press confirms",
            keys="l",
            has_priority=False,
            is_shown=True,
            run=lambda screen, _: screen.load_plan(),
        ),
        Command[PlanActions](
            id="plan-automatic",
            title="Automatic",
            tooltip="Reset every value to the planner's choice",
            keys="a",
            has_priority=False,
            is_shown=True,
            run=lambda screen, _: screen.reset_plan(),
        ),
        Command[PlanActions](
            id="plan-model",
            title="Model",
            tooltip="Plan another model: a name, a path, or org/repo:QUANT from the hub, without a download",
            keys="m",
            has_priority=False,
            is_shown=True,
            run=lambda screen, _: screen.ask_for_model(),
        ),
        Command[PlanActions](
            id="plan-machine",
            title="What if",
            tooltip="Plan for another machine, such as RTX 3060=12GiB; empty means this machine",
            keys="w",
            has_priority=False,
            is_shown=True,
            run=lambda screen, _: screen.ask_for_machine(),
        ),
        Command[PlanActions](
            id="plan-look",
            title="Refresh",
            tooltip="Rescan this machine's memory and plan again",
            keys="r",
            has_priority=False,
            run=lambda screen, _: screen.rescan(),
        ),
    )
)
