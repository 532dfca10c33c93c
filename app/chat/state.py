"""An open chat while it is answered: its messages and place in a store, the engine, the tools, and the figures so far.

The generators of this room (`exchange`, `answer`, `rounds`, `summaries`) take it, change it, and yield what happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.chat.backend import ChatBackend, ChatConnection
from app.chat.compaction import AutoCompaction
from app.chat.events import Failed
from app.chat.figures import AnswerFigures, Clock
from app.chat.repository import OpenedChat
from app.chat.sampling_options import template_of
from app.common.terminal import printable
from app.protocol.chat import Message as ChatMessage
from app.protocol.chat import Tool
from app.protocol.errors import NoTemplateError
from app.tools.approval import ApprovalQuestion, Decision
from app.tools.backend import ToolBackend
from quantizer.system.errors import UserError

_NO_TEMPLATE = (
    "It is a base model: /template completion lets it continue your text; /template lists templates to chat with it."
)


class ChatState:
    """What the generators share. Without `tools` calls are not run.

    `pinned_model` answers instead of the connection's model: it is set while another chat is shown. `other_model`
    answers this time only. `activity` is what runs, and `thinking_id` names the running answer to the service while it
    has reasoning only. `offered` are the tools of the last request; `approvals` the calls that wait for the person.
    `may_compact` until a summary fails: the requests after that are sent as they are. `clean` makes a model's text safe
    to show.
    """

    def __init__(
        self,
        opened: OpenedChat,
        connection: ChatConnection,
        *,
        tools: ToolBackend | None = None,
        clock: Clock = time.monotonic,
        compaction: Callable[[], AutoCompaction] = AutoCompaction,
        on_approvals: Callable[[], None] = lambda: None,
        clean: Callable[[str], str] = printable,
    ) -> None:
        self.stored = opened.stored
        self.conversation = opened.conversation
        self.model_of_last_answer = opened.model
        self.connection = connection
        self.tools = tools
        self.clock = clock
        self.compaction = compaction
        self.clean = clean
        self.pinned_model = self.other_model = ""
        self.activity: Literal["", "answering", "calling", "summarising"] = ""
        self.thinking_id = ""
        self.offered: Sequence[Tool] = ()
        self.approvals = ApprovalQueue(on_approvals)
        self.may_compact = True
        self.figures = AnswerFigures(model=opened.model or self.model)
        self.measure_branch()

    @property
    def model(self) -> str:
        """The model that answers the next question."""
        return self.pinned_model or self.connection.state.model

    @property
    def answering_model(self) -> str:
        """The model of the running answer."""
        return self.other_model or self.model

    @property
    def model_beside_connection(self) -> str:
        """That model if it is not the connection's; else an empty string."""
        return self.other_model or self.pinned_model

    async def client(self) -> ChatBackend:
        """Return the client for the running answer: only the connection's own model must be ready. Raises UserError."""
        return await (self.connection.service() if self.model_beside_connection else self.connection.client())

    async def turns(self, leaf_id: int | None) -> Sequence[ChatMessage]:
        """Return the turns up to a message with their pictures and sounds. Raises StorageError for a missing one."""
        parts = await self.stored.media_parts(self.conversation.media_files(leaf_id))
        return self.conversation.turns(leaf_id, parts)

    async def offer_tools(self) -> None:
        """Offer the tools that are switched on; none with a prompt template, which has no place for them."""
        settings = self.conversation.settings
        if self.tools is None or not settings.tools.enabled or template_of(settings.options):
            self.offered = ()
        else:
            self.offered = tuple(tool.definition for tool in await self.tools.offered(settings.tools))

    def measure_branch(self) -> None:
        """Update the size of the context after another branch is shown."""
        size = self.conversation.context_size(self.conversation.leaf_id)
        self.figures = replace(self.figures, n_context_tokens=size.n_tokens, is_context_estimated=size.is_estimated)

    def fail(self, message_id: int, error: UserError) -> Failed:
        """Keep the error below a message for this session, with the remedy that a chat has for it."""
        remedied = NoTemplateError(error.cause, _NO_TEMPLATE) if isinstance(error, NoTemplateError) else error
        self.conversation.errors[message_id] = remedied
        return Failed(error)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    question: ApprovalQuestion
    answer: asyncio.Future[Decision]


class ApprovalQueue:
    """Implements `app.tools.approval.Approver`. Calls `on_change` when a question comes or goes; `news` is set when one
    comes."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.news = asyncio.Event()
        self._on_change = on_change
        self._waiting: tuple[_Waiting, ...] = ()

    @property
    def questions(self) -> tuple[ApprovalQuestion, ...]:
        """The questions that wait, the next one first."""
        return tuple(each.question for each in self._waiting)

    async def ask(self, question: ApprovalQuestion) -> Decision:
        """Return what the person decides. Cancelling it withdraws the question."""
        asked = _Waiting(question, asyncio.get_running_loop().create_future())
        self._waiting = (*self._waiting, asked)
        self.news.set()
        self._on_change()
        try:
            return await asked.answer
        finally:
            self._remove(asked)

    def answer(self, question: ApprovalQuestion, decision: Decision) -> bool:
        """Answer this very question; return False, and decide nothing, if it does not wait any more or does not take
        that decision."""
        asked = next((each for each in self._waiting if each.question is question), None)
        if asked is None or asked.answer.done() or decision not in question.decisions:
            return False
        asked.answer.set_result(decision)
        self._remove(asked)  # now, so that the next one is shown before the next key
        return True

    def _remove(self, asked: _Waiting) -> None:
        if asked in self._waiting:
            self._waiting = tuple(each for each in self._waiting if each is not asked)
            self._on_change()
