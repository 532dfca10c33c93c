"""How a chat is answered, as a person says it: system prompt, the sampler's options, presets of both.

Owns asking for them. They are kept with the next question.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from app.chat.presets import Presets
from app.chat.sampler import changed
from quantizer.errors import UserError
from tui.resources import Resources
from tui.screens.conversation_screen import ConversationScreen
from tui.settings_words import presets_text, settings_line

__all__ = ["AnswerCommands"]


class AnswerCommands(ConversationScreen):
    """The commands of a chat that are about how it is answered."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self._presets = Presets(resources.settings.data_dir)

    async def set_system_prompt(self, text: str) -> None:
        """Set the system prompt of this chat, or show it."""
        await self._is_reopened.wait()
        conversation = self._session.conversation
        current = text or conversation.settings.system
        conversation.settings = replace(conversation.settings, system=current)
        await self.transcript.add_notice(f"System prompt: {current}" if current else "No system prompt is set.")

    async def edit_options(self, text: str) -> None:
        """Set the sampler's options of this chat as `text` says, such as temperature=0.2; without a text, ask for
        them."""
        from tui.screens.options import OptionsScreen

        await self._is_reopened.wait()
        options = self._session.conversation.settings.options
        if not text:
            self.app.push_screen(OptionsScreen(options, self._take_options))
            return
        try:
            await self._take_options(changed(options, text), preset="")
        except UserError as error:
            self.warn(str(error))

    async def _take_options(self, options: dict[str, int | float], preset: str) -> None:
        """Answer with `options` from now on, and keep them as a preset where that has a name."""
        conversation = self._session.conversation
        settings = replace(conversation.settings, options=options)
        if preset:
            await asyncio.to_thread(self._presets.save, preset, settings)
        conversation.settings = settings
        await self.transcript.add_notice(settings_line(settings))

    async def use_preset(self, name: str) -> None:
        """Answer as a preset says from now on, with this chat's system prompt where it has none; without a name, list
        the presets."""
        await self._is_reopened.wait()
        try:
            if not name:
                presets = await asyncio.to_thread(self._presets.all)
                await self.transcript.add_notice(presets_text(presets))
                return
            preset = await asyncio.to_thread(self._presets.get, name)
        except UserError as error:
            self.warn(str(error))
            return
        conversation = self._session.conversation
        conversation.settings = replace(preset, system=preset.system or conversation.settings.system)
        await self.transcript.add_notice(f"{name}: {settings_line(conversation.settings)}")
