"""Commands for the settings of the open chat: its system prompt, options, presets, templates and prompts.

`tui.chat.settings_editor` changes them, also for the chat in the scrollback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tui.chat.settings_editor import SettingsEditor
from tui.chat.view import ChatView

_TEMPLATE_HINT = "For a base model, which has no template of its own. It is stored with the chat."


class SettingsActions:
    """The methods that commands call. `show_status` is called when what it shows changes."""

    def __init__(self, view: ChatView, editor: SettingsEditor, show_status: Callable[[], None]) -> None:
        self._view = view
        self._screen = view.screen
        self._editor = editor
        self._show_status = show_status

    async def set_system_prompt(self, text: str) -> None:
        """Set the system prompt of this chat, or show it."""
        await self._view.is_open.wait()
        await self._view.transcript.add_notice(self._editor.set_system_prompt(text))

    async def edit_options(self, text: str) -> None:
        """Set sampling options from text such as `temperature=0.2`; without a text, open the form."""
        from tui.chat.options_screen import OptionsScreen

        await self._view.is_open.wait()
        if not text:
            self._screen.app.push_screen(OptionsScreen(self._editor.settings.options, self._set_options))
            return
        with self._screen.warn_on_error():
            await self._view.transcript.add_notice(await self._editor.change_options(text))

    async def _set_options(self, texts: Mapping[str, str], preset: str) -> None:
        await self._view.transcript.add_notice(await self._editor.set_options(texts, preset))

    async def set_thinking(self, text: str) -> None:
        """Set how much the model thinks before an answer, or show it."""
        await self._view.is_open.wait()
        with self._screen.warn_on_error():
            await self._view.transcript.add_notice(self._editor.set_thinking(text))
        self._show_status()

    async def use_preset(self, name: str) -> None:
        """Apply a preset, or list the presets."""
        await self._view.is_open.wait()
        with self._screen.warn_on_error():
            await self._view.transcript.add_notice(await self._editor.use_preset(name))

    async def use_template(self, name: str) -> None:
        """Use a prompt template, or ask which; a question that failed without one is answered."""
        from tui.widgets.dialogs import ChoiceDialog

        await self._view.is_open.wait()
        if not name:
            choices = {slash: f"{slash}: {note}" for slash, note in self._editor.templates()}
            self._screen.app.push_screen(
                ChoiceDialog("Prompt template", _TEMPLATE_HINT, choices), self._template_chosen
            )
            return
        with self._screen.warn_on_error():
            await self._view.transcript.add_notice(self._editor.use_template(name))
            if self._view.chat.lacks_template and not self._view.chat.is_answering:
                await self._screen.run_command("retry")

    async def _template_chosen(self, name: str | None) -> None:
        if name is not None:
            await self.use_template(name)

    async def use_prompt(self, name: str) -> None:
        """Put a prompt of the library into the composer, or list the prompts."""
        with self._screen.warn_on_error():
            if name:
                self._view.composer.put(await self._editor.prompt(name), self._view.composer.attachments)
                self._view.prompt.select_placeholder()
            else:
                await self._view.transcript.add_notice(await self._editor.list_prompts())
