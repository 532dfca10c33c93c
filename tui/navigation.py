"""The table of features: screens of their own, each imported on the first visit.

Owns their names, keys and order.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

__all__ = ["FEATURES", "HOME", "Feature"]

HOME = "chat"


@dataclass(frozen=True, slots=True)
class Feature:
    """A screen to stay in, as `module:class`, constructed with the `AppContext`. `id` is also its slash word."""

    id: str
    title: str
    tooltip: str
    key: str
    screen: str

    def screen_class(self) -> type[Any]:
        """Import the screen's module and return its class: the first frame must not wait for the other features."""
        module, _, name = self.screen.partition(":")
        found: type[Any] = getattr(importlib.import_module(module), name)
        return found


FEATURES = (
    Feature("chat", "Chat", "Chat with the model", "", "tui.chat.screen:ChatScreen"),
    Feature("chats", "Chats", "Find and reopen chats", "f5", "tui.history.screen:HistoryScreen"),
    Feature("models", "Models", "Choose, download, quantize and remove models", "f6", "tui.models.screen:ModelsScreen"),
    Feature(
        "plan", "Plan", "See and change where a model's layers go, and its speed", "f7", "tui.plan.screen:PlanScreen"
    ),
    Feature("jobs", "Jobs", "Monitor, cancel and retry jobs", "f8", "tui.jobs.screen:JobsScreen"),
    Feature("metrics", "Metrics", "Monitor and benchmark models", "f9", "tui.metrics.screen:MetricsScreen"),
    Feature("settings", "Settings", "View and change settings", "f10", "tui.settings.screen:SettingsScreen"),
    Feature("log", "Log", "Read the service's log", "", "tui.jobs.log:LogScreen"),
)
