"""A screen with a conversation on it: the transcript, where a person writes, and the answer that is under way.

Owns what all that is done on such a screen has in common. What is done is in the classes that build on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from textual.worker import Worker, WorkerCancelled

from quantizer.errors import StorageError
from tui.conversation import Entry
from tui.resources import Resources
from tui.screens.command_screen import CommandScreen
from tui.session import ChatSession
from tui.widgets.composer import Composer
from tui.widgets.prompt_input import PromptInput
from tui.widgets.status_line import StatusLine
from tui.widgets.transcript import Transcript

__all__ = ["ConversationScreen"]


class ConversationScreen(CommandScreen):
    """Runs one answer at a time, once the last chat is there again."""

    def __init__(self, resources: Resources) -> None:
        super().__init__()
        self._connection = resources.connection
        self._session = ChatSession(resources.connection, resources.keeper, resources.clock, self._show_status)
        self._answering: Worker[Any] | None = None
        self._titling: Worker[Any] | None = None
        self._is_reopened = asyncio.Event()
        self._edited_id: int | None = None  # the question that what is typed will stand beside

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def composer(self) -> Composer:
        return self.query_one(Composer)

    @property
    def prompt(self) -> PromptInput:
        return self.composer.prompt

    @property
    def is_answering(self) -> bool:
        """Whether a question waits for its answer or the answer is being written."""
        return self._answering is not None and not self._answering.is_finished

    async def stop_answer(self) -> None:
        """Hide what is offered for a word; else stop the answer and keep what came of it, or go to the prompt."""
        if self.composer.dismiss():
            return
        if self._answering is not None and self.is_answering:
            self._answering.cancel()
            with suppress(WorkerCancelled):
                await self._answering.wait()
        else:
            self._end_edit()
            self.set_focus(self.prompt)  # at once: the next key may be under way

    async def _show_all(self, at: int | None = None) -> None:
        await self.transcript.show(self._session.conversation.entries(), at)

    def _answer(self, answering: Callable[[], Awaitable[None]]) -> None:
        async def answer() -> None:
            await self._is_reopened.wait()
            await answering()
            self._titling = self.run_worker(self._session.entitle, group="title")

        if self._titling is not None:
            self._titling.cancel()  # a title can wait, a person cannot
        self._answering = self.run_worker(answer, group="answer")

    @contextmanager
    def _told_if_not_kept(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            self.say(str(error))

    def _selected_to_change(self) -> Entry | None:
        """The selected message, unless nothing may change now; says why there is none."""
        selected = self.transcript.selected
        if self.is_answering:
            self.say("An answer is under way: Esc stops it.")
        elif selected is None:
            self.say("Select a message first: Ctrl+Up.")
        else:
            return selected.entry
        return None

    def _end_edit(self) -> None:
        if self._edited_id is not None:
            self._edited_id = None
            self.prompt.border_title = None
            self.composer.put("")

    def _show_status(self) -> None:
        for line in self.query(StatusLine):  # none is left while the app closes
            line.show(self._session.status)
