"""What sending the draft means: its tokens, what the model does not see or hear of it, and parts of what is too long;
and what the model reads of it before it is sent. `tui.chat.composer` owns the draft itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from textual.content import Content
from textual.timer import Timer

from app.chat.attachments.prompt import part_of, split_text
from app.chat.backend import ConnectionState
from app.chat.conversation import Attachment, MessageContent
from app.chat.read_ahead import Draft, ReadAhead
from app.common.terminal import printable_line
from app.connection import localllm_service
from quantizer.system.errors import UserError
from tui.chat.actions import ChatView
from tui.chat.composer.composer import Composer
from tui.chat.composer.context_forecast import ContextForecast, DraftCounter
from tui.chat.composer.shell_command import shell_command
from tui.commands import slash_line

if TYPE_CHECKING:
    from app.client.service_client import ServiceClient
    from app.protocol.library import LocalModel

_PAUSE_S = 0.3
_ASK_AGAIN_S = 0.2
_PART_SHARE = 0.75  # of what is free in the context
_BEGINNING_CHARACTERS = 40
_SEARCH, _WHOLE = "search", "whole"
_SEARCH_LABEL = "search in it: the passages that fit each question are sent"
_MAX_NAMED = 3


class DraftActions:
    """The methods that commands call, and what is said about a draft while it is typed. `on_change` is called when the
    `forecast` or `reading` changes."""

    def __init__(self, view: ChatView, on_change: Callable[[], None]) -> None:
        self.forecast: ContextForecast | None = None  # of the present draft
        self._foreseen: tuple[MessageContent, ContextForecast | None] = (MessageContent(), None)  # the last one
        self._on_change = on_change
        self._view = view
        self._screen = view.screen
        self._draft_counter = DraftCounter(lambda files: view.chat.stored.media_parts(files))
        self._forecast_timer: Timer | None = None
        self._reader_model = ""  # a local one that reads what the present one does not
        self._measured_for = ""  # the model that counted the attachments
        controller = view.screen.app_context.settings_controller
        self._read_ahead = ReadAhead(
            lambda: view.chat, self._draft_to_read, lambda: controller.settings.prefill_ahead, on_change
        )

    @property
    def reading(self) -> str:
        """How much of the draft the model has read before it is sent, in words; empty for nothing."""
        return self._read_ahead.words

    async def close(self) -> None:
        await self._read_ahead.close()

    def attach_file(self, name: str) -> None:
        if name:
            self._view.composer.attach(name.strip("'\""), f"/attach {name}")
        else:
            self._view.prompt.put("/attach ")

    async def switch_reader(self) -> None:
        if self._reader_model:
            await self._view.connection.use_model(self._reader_model)
        else:
            self._screen.inform("Nothing is attached that needs another model.")

    def choose_part(self, name: str = "") -> None:
        """Choose what is sent of a text: a part of it, or the passages that fit each question; of the one with this
        name, or of the longest."""
        self._view.run(partial(self._choose_part, name), "parts", exclusive=True)

    async def _choose_part(self, wanted: str) -> None:
        draft = await self._view.composer.expected_draft()
        attachments = {each.name: each for each in draft.attachments if each.content}
        if not attachments:
            self._screen.inform("No text is attached that has parts.")
            return
        attachment = attachments.get(wanted) or max(attachments.values(), key=lambda each: len(each.content))
        # each part leaves a quarter of the context for the question and its answer
        state, n_characters = self._view.connection.state, len(attachment.content)
        with self._screen.inform_on_error():
            client = await self._view.connection.client()
            text = replace(attachment, media=(), is_searched=False)
            count = await self._draft_counter.count(text, 0, client, state)
            n_free = (state.n_ctx - self._n_tokens_before()) * _PART_SHARE
            if count is not None and 0 < n_free < count.n_tokens:
                n_characters = max(1, int(n_characters * n_free / count.n_tokens))
        parts, name = split_text(attachment.content, n_characters), printable_line(attachment.name)
        choices = {_SEARCH: _SEARCH_LABEL}
        if len(parts) == 1:
            choices[_WHOLE] = "all of it: it fits"
        else:
            choices |= {str(part.number): f"{part.label}: {_beginning(part.text)}" for part in parts}

        def take(choice: str) -> None:
            if choice in (_SEARCH, _WHOLE):
                chosen = replace(attachment, is_searched=choice == _SEARCH)
            else:
                chosen = replace(part_of(attachment, parts[int(choice) - 1]), is_searched=False)
            if any(each.name == chosen.name for each in self._view.composer.attachments):
                self._view.composer.replace(chosen)
            else:  # the prompt only mentions it
                self._view.composer.add([chosen])

        hint = "A part takes the place of the whole text. @FILE.pdf#3-5 attaches pages." if len(parts) > 1 else ""
        self._view.choose(f"What is sent of {Content(name).markup}", choices, take, hint, is_numbered=False)

    def open_attachment(self, name: str = "") -> None:
        """Open the attachment with this name, the only one, or one chosen from a list."""
        names = [attachment.name for attachment in self._view.composer.attachments]
        if not names:
            self._screen.inform("Nothing is attached yet: @ attaches a file.")
        elif name in names or len(names) == 1:
            self._view.composer.open_attachment(name if name in names else names[0])
        else:
            titles = {name: printable_line(name) for name in names}
            self._view.choose("Open an attachment", titles, self._view.composer.open_attachment)

    # What is said about a draft

    def changed(self) -> None:
        """Say what sending the draft means, and let the model read what of it is certain, soon. What changed may be the
        draft, the chat or its settings."""
        self._forecast_later()
        self._read_ahead.look(self._view.prompt.text)

    def model_changed(self) -> None:
        self.changed()
        self.check_senses()
        state = self._view.connection.state
        if state.phase == "ready" and state.model != self._measured_for:
            self._measured_for = state.model
            for attachment in self._view.composer.attachments:
                self.attached(attachment)

    def sent(self) -> None:
        """End the reading: the question goes on from what was read."""
        self._read_ahead.stop()

    async def _draft_to_read(self) -> Draft | None:
        """Return the question as it is now, None for a command and while a chat opens."""
        if not self._view.is_open.is_set() or not self._screen.own(Composer):
            return None
        draft, cursor = await self._view.composer.expected_draft(), self._view.prompt.n_before_cursor
        if draft.content == "/" or slash_line(draft.content) is not None or shell_command(draft.content):
            return None
        return Draft(draft.content, cursor, draft.attachments, self._view.edited_id)

    def _forecast_later(self) -> None:
        """Say what sending the draft means for the context, once the user pauses."""
        if self._forecast_timer is not None:
            self._forecast_timer.stop()
        draft = self._view.composer.draft
        is_slash = draft.content == "/" or slash_line(draft.content) is not None  # maybe unfinished
        if draft.is_empty or is_slash or shell_command(draft.content):
            self._screen.workers.cancel_group(self._screen, "forecast")
            self._foresee(None)
        else:
            forecast = partial(self._view.run, self._forecast, "forecast", exclusive=True)
            self._forecast_timer = self._screen.set_timer(_PAUSE_S, forecast)

    async def _forecast(self) -> None:
        state = self._view.connection.state
        if state.phase != "ready":
            return
        with suppress(UserError):  # the question reports it
            draft, client = await self._view.composer.expected_draft(), await self._view.connection.client()
            forecast = await self._draft_counter.forecast(draft, self._n_tokens_before(), client, state)
            self._foreseen = draft, forecast
            self._foresee(forecast)

    def refusal(self, question: MessageContent) -> str:
        """Return why a question cannot be sent, with the ways out; empty where it can, or where room may be made for
        it: by a longer context, or by a summary of what was said before."""
        draft, forecast = self._foreseen  # which the composer has no longer
        state = self._view.connection.state
        if draft.content.strip() != question.content.strip() or draft.attachments != question.attachments:
            return ""
        if forecast is None or not forecast.is_too_long or state.can_grow:
            return ""
        n_draft = forecast.n_tokens - self._n_tokens_before()
        if n_draft <= forecast.n_ctx:
            return ""
        has_text = any(each.sent_content for each in question.attachments)
        way = f"{self._key_of('part')} or /part searches in it or takes a part" if has_text else "shorten it"
        return f"Too long: about {n_draft:,} tokens, and the context has {forecast.n_ctx:,}; {way}."

    def _foresee(self, forecast: ContextForecast | None) -> None:
        if forecast != self.forecast:
            self.forecast = forecast
            self._on_change()

    def _n_tokens_before(self) -> int:
        """Return the tokens in the context before the draft, as far as known."""
        conversation = self._view.session.conversation
        edited = conversation.messages.get(self._view.edited_id) if self._view.edited_id is not None else None
        return self._view.chat.context_size(edited.parent_id if edited else conversation.leaf_id).n_tokens

    def attached(self, attachment: Attachment) -> None:
        self._view.run(partial(self._measure, attachment), "measure")

    async def _measure(self, attachment: Attachment) -> None:
        with suppress(UserError):  # if the model is not available, its size stays as it is
            client = await self._view.connection.client()
            state = self._view.connection.state
            count = await self._draft_counter.count(attachment, self._n_tokens_before(), client, state)
            if count is None:
                return
            self._view.composer.measure(attachment.name, count)
            if count.is_too_large and attachment.sent_content:
                self._screen.inform(
                    f"{printable_line(attachment.name)} does not fit: {self._key_of('part')} searches in it, or takes a"
                    " part."
                )

    def check_senses(self) -> None:
        """Say at once what the model does not see or hear, and which local models do."""
        self._view.run(self._check_senses, "senses", exclusive=True)

    async def _check_senses(self) -> None:
        state = self._view.connection.state
        unread = unread_media(self._view.composer.attachments, state)
        self._reader_model = ""
        if unread is None:
            self._view.composer.warn("")
            return
        self._view.composer.warn(unread.text(state.model))
        with suppress(UserError):  # then only the first half is known
            service = await localllm_service(self._view.connection)
            found = await find_readers(service, unread)
            self._reader_model = found[0].path if found else ""
            text = unread.text(state.model, [model.id for model in found], self._key_of("switch-reader"))
            self._view.composer.warn(text)

    def _key_of(self, command_id: str) -> str:
        command = self._screen.TABLE.find(command_id)
        assert command is not None
        from tui.design.key_names import format_keys

        return format_keys(command.bound_keys(self._screen.app_context.settings_controller.keys))


@dataclass(frozen=True, slots=True)
class UnreadMedia:
    """That the draft has pictures or sounds that its model does not read."""

    has_pictures: bool
    has_sounds: bool

    def text(self, model: str, others: Sequence[str] | None = None, key: str = "") -> str:
        """Return a line about it: that `key` switches to the first of the `others` that read them; None is unknown."""
        senses = (("see pictures", self.has_pictures), ("hear sounds", self.has_sounds))
        verbs = " or ".join(verb for verb, is_unread in senses if is_unread)
        cause = f"{model} does not {verbs}."
        if others is None:
            return cause
        if not others:
            return f"{cause} No local model does: F6 downloads one."
        more = f" (or {', '.join(others[1:_MAX_NAMED])})" if len(others) > 1 else ""
        return f"{cause} {key} switches to {others[0]}{more}."


def unread_media(attachments: Iterable[Attachment], state: ConnectionState) -> UnreadMedia | None:
    """Return what of `attachments` the model does not read; None if that is nothing, or unknown."""
    unread = [file for attachment in attachments for file in attachment.media if not state.reads(file)]
    if not unread:
        return None
    return UnreadMedia(not all(file.is_sound for file in unread), any(file.is_sound for file in unread))


async def find_readers(service: ServiceClient, unread: UnreadMedia) -> list[LocalModel]:
    """Return the local models that read all of it, loaded ones first. A service that has just started still reads
    headers: it is asked until it knows one, or all. Raises what it reports."""
    listing = await service.library.models()
    while not (found := models_that_read(unread, listing.models)) and not listing.is_complete:
        await asyncio.sleep(_ASK_AGAIN_S)
        listing = await service.library.models()
    return found


def models_that_read(unread: UnreadMedia, models: Iterable[LocalModel]) -> list[LocalModel]:
    """Return the models that read all of it, loaded ones first."""
    found = [
        model
        for model in models
        if not model.damaged and (model.sees or not unread.has_pictures) and (model.hears or not unread.has_sounds)
    ]
    return sorted(found, key=lambda model: (model.state != "ready", model.n_bytes))


def _beginning(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("[Page ")]
    words = printable_line(lines[0]) if lines else ""
    return words if len(words) <= _BEGINNING_CHARACTERS else f"{words[: _BEGINNING_CHARACTERS - 1]}…"
