"""The command table of the settings screen.

Owns ids, keys and texts. The implementations are methods of the screen, typed as `SettingsActions`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from tui.commands import Command, CommandTable

__all__ = ["SETTINGS_COMMANDS", "SettingsActions"]


class SettingsActions(Protocol):
    """The methods of the settings screen that its commands call."""

    def change_setting(self) -> None: ...

    def reset_setting(self) -> Awaitable[None]: ...

    def load_as_written(self) -> None: ...


SETTINGS_COMMANDS: CommandTable[Any] = CommandTable(
    (
        Command[SettingsActions](
            id="settings-change",
            title="Change",
            tooltip="Change the setting in the settings file; Enter does the same",
            keys="e",
            has_priority=False,
            is_shown=True,
            run=lambda screen, _: screen.change_setting(),
        ),
        Command[SettingsActions](
            id="settings-reset",
            title="Reset",
            tooltip="Remove the setting from the settings file: the default applies again",
            keys="r,delete",
            has_priority=False,
            is_shown=True,
            run=lambda screen, _: screen.reset_setting(),
        ),
        Command[SettingsActions](
            id="settings-load",
            title="Load it so",
            tooltip="Reload the model with the saved context, cache and parallel settings",
            keys="l",
            has_priority=False,
            is_shown=True,
            run=lambda screen, _: screen.load_as_written(),
        ),
    )
)
