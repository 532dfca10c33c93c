"""Changes of a chat's settings by command: system prompt, sampling options, presets.

Each method returns the line to show. The next question stores the settings.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from app.chat.conversation import ChatSettings
from app.chat.presets import Presets
from app.chat.sampling_options import change_options
from tui.chat.format import presets_text, settings_line
from tui.chat.session import ChatSession

__all__ = ["SettingsEditor"]

_CLEAR = "clear"


class SettingsEditor:
    """Edits the settings of the chat that `session` has open."""

    def __init__(self, session: ChatSession, presets: Presets) -> None:
        self._session = session
        self._presets = presets

    @property
    def settings(self) -> ChatSettings:
        """The settings of the open chat."""
        return self._session.conversation.settings

    @settings.setter
    def settings(self, settings: ChatSettings) -> None:
        self._session.conversation.settings = settings

    def set_system_prompt(self, text: str) -> str:
        """Set the system prompt, remove it if `text` is "clear", or leave it if `text` is empty."""
        former = self.settings.system
        self.settings = replace(self.settings, system="" if text.lower() == _CLEAR else text or former)
        if self.settings.system:
            return f"System prompt: {self.settings.system}\n/system {_CLEAR} removes it."
        return "The system prompt is removed." if former else "No system prompt is set."

    def change_options(self, text: str) -> str:
        """Set sampling options from text such as `temperature=0.2`. Raises UsageError."""
        self.settings = replace(self.settings, options=change_options(self.settings.options, text))
        return settings_line(self.settings)

    async def set_options(self, options: dict[str, int | float], preset: str) -> str:
        """Replace the sampling options, and save them as a preset if that has a name. Raises UserError."""
        settings = replace(self.settings, options=options)
        if preset:
            await asyncio.to_thread(self._presets.save, preset, settings)
        self.settings = settings
        return settings_line(settings)

    async def use_preset(self, name: str) -> str:
        """Apply a preset, with this chat's system prompt if it has none; without a name, list the presets. Raises
        UserError."""
        if not name:
            return presets_text(await asyncio.to_thread(self._presets.all))
        preset = await asyncio.to_thread(self._presets.get, name)
        self.settings = replace(preset, system=preset.system or self.settings.system)
        return f"{name}: {settings_line(self.settings)}"
