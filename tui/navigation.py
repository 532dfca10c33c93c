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
    Feature("chat", "Chat", "Talk with the model", "", "tui.chat.screen:ChatScreen"),
    Feature("chats", "Chats", "Find a chat, and go on with it", "f5", "tui.history.screen:HistoryScreen"),
    Feature("models", "Models", "Choose, fetch, quantize and remove models", "f6", "tui.models.screen:ModelsScreen"),
    Feature(
        "plan", "Plan", "See where a model goes, how fast that is, and change it", "f7", "tui.plan.screen:PlanScreen"
    ),
    Feature("jobs", "Jobs", "Follow, cancel and retry long work", "f8", "tui.jobs.screen:JobsScreen"),
    Feature("metrics", "Metrics", "See what models do, and measure how fast", "f9", "tui.metrics.screen:MetricsScreen"),
    Feature("settings", "Settings", "See and change every setting", "f10", "tui.settings.screen:SettingsScreen"),
    Feature("log", "Log", "Read what the service writes", "", "tui.jobs.log:LogScreen"),
)
