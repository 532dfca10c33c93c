"""The part of the chat screen about the draft: its attachments, and what sending it means for the context.

Owns what is said about a draft before it is sent. `tui.chat.composer` owns the draft itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from textual import on, work
from textual.content import Content
from textual.timer import Timer
from textual.worker import Worker

from app.chat.attachments.splitting import TextPart, part_of, split_text
from app.chat.conversation import Attachment
from app.common.terminal import printable_line
from quantizer.system.errors import UserError
from tui.chat.composer.attachment_bar import AttachmentBar
from tui.chat.composer.composer import Composer
from tui.chat.composer.context_forecast import DraftCounter
from tui.chat.message_actions import ConversationScreen
from tui.chat.senses import models_that_read, unread_media
from tui.commands import slash_line
from tui.connection import localllm_service
from tui.context import AppContext

_PAUSE_S = 0.3
_PART_SHARE = 0.75  # of what is free in the context
_PARTS_HINT = "The part takes the place of the whole text. @FILE.pdf#3-5 attaches pages."
_BEGINNING_CHARACTERS = 40


class DraftScreen(ConversationScreen):
    """A conversation whose draft is counted, and checked against what the model reads."""

    def __init__(self, app_context: AppContext) -> None:
        super().__init__(app_context)
        self._draft_counter = DraftCounter(lambda files: self._session.chat.stored.media_parts(files))
        self._forecast_timer: Timer | None = None
        self._reader_model = ""  # a local one that reads what the present one does not
        self._measured_for = ""  # the model that counted the attachments

    def _draft_may_read_otherwise(self) -> None:
        """Count and check the draft again: the model may be another one."""
        self._forecast_later()
        self._check_senses()
        state = self._connection.state
        if state.phase == "ready" and state.model != self._measured_for:
            self._measured_for = state.model
            for attachment in self.composer.attachments:
                self._attached(Composer.Attached(attachment))

    def _forecast_later(self) -> None:
        """Say what sending the draft means for the context, once the user pauses."""
        if self._forecast_timer is not None:
            self._forecast_timer.stop()
        draft = self.composer.draft
        if not draft or draft.text == "/" or slash_line(draft.text) is not None:  # a command, maybe unfinished
            self.workers.cancel_group(self, "forecast")
            self.prompt.show_forecast()
        else:
            self._forecast_timer = self.set_timer(_PAUSE_S, self._forecast)

    @work(group="forecast", exclusive=True)
    async def _forecast(self) -> None:
        state = self._connection.state
        if state.phase != "ready":
            return
        with suppress(UserError):  # the question reports it
            draft, client = await self.composer.expected_draft(), await self._connection.client()
            forecast = await self._draft_counter.forecast(draft, self._n_tokens_before(), client, state)
            self.prompt.show_forecast(forecast.text, is_warning=forecast.is_too_long)

    def _n_tokens_before(self) -> int:
        """Return the tokens in the context before the draft, as far as known."""
        conversation = self._session.conversation
        edited = conversation.messages.get(self._edited_id) if self._edited_id is not None else None
        return conversation.context_size(edited.parent_id if edited else conversation.leaf_id).n_tokens

    @on(Composer.Attached)
    def _attached(self, event: Composer.Attached) -> None:
        _: Worker[None] = self.run_worker(partial(self._measure, event.attachment), group="measure")

    async def _measure(self, attachment: Attachment) -> None:
        """Count the tokens of an attachment; if the model is not available, its size stays as it is."""
        with suppress(UserError):
            client = await self._connection.client()
            state = self._connection.state
            count = await self._draft_counter.count(attachment, self._n_tokens_before(), client, state)
            if count is None:
                return
            self.composer.measure(attachment.name, count)
            if count.is_too_large and attachment.content:
                self.inform(f"{printable_line(attachment.name)} does not fit: {self._key_of('part')} offers its parts.")

    @on(AttachmentBar.Changed)
    def _attachments_changed(self) -> None:
        self._check_senses()

    @work(group="senses", exclusive=True)
    async def _check_senses(self) -> None:
        """Say at once what the model does not see or hear, and which local models do."""
        state = self._connection.state
        unread = unread_media(self.composer.attachments, state)
        self._reader_model = ""
        if unread is None:
            self.composer.warn("")
            return
        self.composer.warn(unread.text(state.model))
        with suppress(UserError):  # then only the first half is known
            service = await localllm_service(self._connection)
            found = models_that_read(unread, (await service.library.models()).models)
            self._reader_model = found[0].path if found else ""
            self.composer.warn(unread.text(state.model, [model.id for model in found], self._key_of("switch-reader")))

    def _key_of(self, command_id: str) -> str:
        command = self.TABLE.find(command_id)
        assert command is not None
        from tui.widgets.dialogs import format_keys

        return format_keys(command.bound_keys(self.app_context.settings_controller.keys))

    @on(Composer.Refused)
    def _refused(self, event: Composer.Refused) -> None:
        self.inform(str(event.error))

    # Commands

    def attach_file(self, name: str) -> None:
        """Attach the file with this name or path."""
        if name:
            self.composer.attach(name.strip("'\""))
        else:
            self.prompt.put("/attach ")

    async def switch_reader(self) -> None:
        """Chat with a model that reads what is attached."""
        if self._reader_model:
            await self._connection.use_model(self._reader_model)
        else:
            self.inform("Nothing is attached that needs another model.")

    def choose_part(self, name: str = "") -> None:
        """Attach a part of a text in its place: of the one with this name, or of the first that does not fit."""
        attachments = {each.name: each for each in self.composer.attachments if each.content}
        if not attachments:
            self.inform("No text is attached that has parts.")
        else:
            longest = max(attachments.values(), key=lambda each: len(each.content))
            self._choose_part(attachments.get(name, longest))

    @work(group="parts", exclusive=True)
    async def _choose_part(self, attachment: Attachment) -> None:
        from tui.widgets.dialogs import ChoiceDialog

        parts = await self._parts(attachment)
        if len(parts) == 1:
            self.inform(f"{printable_line(attachment.name)} fits as it is.")
            return
        labels = {str(part.number): f"{part.label}: {_beginning(part.text)}" for part in parts}
        title = f"Parts of {Content(printable_line(attachment.name)).markup}"
        chosen = await self.app.push_screen_wait(ChoiceDialog(title, _PARTS_HINT, labels, is_numbered=True))
        if chosen is not None:
            self.composer.replace(part_of(attachment, parts[int(chosen) - 1]))

    async def _parts(self, attachment: Attachment) -> Sequence[TextPart]:
        """Return parts of which each leaves a quarter of the context for the question and its answer."""
        state, n_characters = self._connection.state, len(attachment.content)
        with self.inform_on_error():
            client = await self._connection.client()
            count = await self._draft_counter.count(replace(attachment, media=()), 0, client, state)
            n_free = (state.n_ctx - self._n_tokens_before()) * _PART_SHARE
            if count is not None and 0 < n_free < count.n_tokens:
                n_characters = max(1, int(n_characters * n_free / count.n_tokens))
        return split_text(attachment.content, n_characters)

    def open_attachment(self, name: str = "") -> None:
        """Open the attachment with this name, the only one, or one chosen from a list."""
        names = [attachment.name for attachment in self.composer.attachments]
        if not names:
            self.inform("Nothing is attached yet: @ attaches a file.")
        elif name in names or len(names) == 1:
            self.composer.open_attachment(name if name in names else names[0])
        else:
            self._choose_attachment(names)

    @work
    async def _choose_attachment(self, names: Sequence[str]) -> None:
        from tui.widgets.dialogs import ChoiceDialog

        titles = {name: printable_line(name) for name in names}
        chosen = await self.app.push_screen_wait(ChoiceDialog("Open an attachment", "", titles, is_numbered=True))
        if chosen is not None:
            self.composer.open_attachment(chosen)


def _beginning(text: str) -> str:
    """Return how a part begins, without the mark of its page, in a line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("[Page ")]
    words = printable_line(lines[0]) if lines else ""
    return words if len(words) <= _BEGINNING_CHARACTERS else f"{words[: _BEGINNING_CHARACTERS - 1]}…"
