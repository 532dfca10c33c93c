"""The command table of the metrics screen.

Owns ids, keys and texts. The implementations are methods of the screen, typed as `MetricsActions`.
"""

from __future__ import annotations

from typing import Any, Protocol

from tui.commands import Command, CommandTable

__all__ = ["METRICS_COMMANDS", "MetricsActions"]


class MetricsActions(Protocol):
    """The methods of the metrics screen that its commands call."""

    def measure(self, model: str) -> None: ...

    def clear_comparison(self) -> None: ...


METRICS_COMMANDS: CommandTable[Any] = CommandTable(
    (
        Command[MetricsActions](
            id="metrics-measure",
            title="Measure",
            tooltip="Benchmark the model in a separate service; takes a minute or more",
            keys="b",
            has_priority=False,
            is_shown=True,
            run=lambda screen, model: screen.measure(model),
        ),
        Command[MetricsActions](
            id="metrics-clear",
            title="Clear comparison",
            tooltip="Clear the run selected for comparison",
            keys="c",
            has_priority=False,
            is_shown=True,
            run=lambda screen, _: screen.clear_comparison(),
        ),
    )
)
