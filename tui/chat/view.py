"""The open chat on its screen: the widgets that show it and take its text, and answers that begin once it is open.

The ground that the parts of the chat screen stand on; it knows no command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from textual.events import Paste
from textual.worker import Worker

from app.chat.branches import RemovedMessages
from app.chat.conversation import MessageContent
from app.chat.session import OpenChat, joined
from tui.chat.composer.composer import Composer
from tui.chat.composer.prompt_input import PromptInput
from tui.chat.transcript.transcript import Transcript
from tui.connection import ServiceConnection
from tui.widgets.screens import CommandScreen


class ChatView:
    """`is_open` is set once the last chat was opened, before which nothing is sent. `edited_id` is the message that the
    prompt's text will replace; `removed` are the deletions in the open chat, the last one last."""

    def __init__(self, screen: CommandScreen) -> None:
        self.screen = screen
        self.session = screen.app_context.session
        self.is_open = asyncio.Event()
        self.removed: list[RemovedMessages] = []
        self.edited_id: int | None = None

    @property
    def chat(self) -> OpenChat:
        return self.session.chat

    @property
    def connection(self) -> ServiceConnection:
        return self.session.connection

    @property
    def transcript(self) -> Transcript:
        return self.screen.query_one(Transcript)

    @property
    def composer(self) -> Composer:
        return self.screen.query_one(Composer)

    @property
    def prompt(self) -> PromptInput:
        return self.composer.prompt

    async def show_all(self, at: int | None = None) -> None:
        """Show the branch, scrolled to its end or to the message with the id `at`."""
        await self.transcript.show(self.session.conversation.entries(), at)

    def answer(self, begin: Callable[[OpenChat], object]) -> None:
        """Call `begin` with the open chat, once that is open, and report what breaks its answer unexpectedly."""
        if self.is_open.is_set():
            begin(self.chat)
            waiting: Callable[[], Coroutine[Any, Any, None]] = self.chat.wait
        else:
            waiting = partial(self._answer_when_open, begin)
        self.run(waiting, "answer")

    def run(self, work: Callable[[], Coroutine[Any, Any, None]], group: str, *, exclusive: bool = False) -> None:
        """Run `work` as a worker of the screen; if `exclusive` it ends the others of its group."""
        _: Worker[None] = self.screen.run_worker(work, group=group, exclusive=exclusive)

    async def _answer_when_open(self, begin: Callable[[OpenChat], object]) -> None:
        await self.is_open.wait()
        begin(self.chat)
        await self.chat.wait()

    def refuses_while_answering(self) -> bool:
        """Return whether an answer is running, and say so."""
        if self.chat.is_answering:
            self.screen.inform("An answer is running: Esc stops it.")
        return self.chat.is_answering

    def end_edit(self) -> None:
        """Let the prompt's text be a new question again."""
        if self.edited_id is not None:
            self.edited_id = None
            self.prompt.border_title = None
            self.composer.put("")

    def focus_prompt(self) -> None:
        """Give the keys to the prompt at once: the next one may be queued already."""
        self.screen.set_focus(self.prompt)

    def give_to_prompt(self, text: str) -> None:
        """Let the prompt have what was typed elsewhere."""
        self.focus_prompt()
        self.prompt.post_message(Paste(text))

    def put_back(self, draft: MessageContent | None) -> bool:
        """Put unsent text before that in the prompt; return whether there is any."""
        if draft is None:
            return False
        whole = joined(draft, self.composer.draft)
        self.composer.put(whole.content, whole.attachments)
        return True
