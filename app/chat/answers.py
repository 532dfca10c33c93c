"""The answer that a chat is being given: streamed into its message, measured and drawn.

Owns its figures, its model, and whether it has only reasoning so far. What is asked, and what follows an answer, is
`app.chat.session`'s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Protocol

from app.chat.backend import ChatConnection
from app.chat.branches import Conversation
from app.chat.conversation import Message, MessageState
from app.chat.repository import AnswerTarget, AnswerWriter, StoredChat
from app.chat.stream import AnswerFigures, AnswerTimer, Clock, StreamChunk, stream_answer
from app.protocol.chat import Message as ChatMessage
from app.protocol.chat import Tool, with_deltas
from app.protocol.errors import NoTemplateError, ServiceError
from quantizer.system.errors import UserError

_NO_TEMPLATE = (
    "It is a base model: /template completion lets it continue your text; /template lists templates to chat with it."
)


class AnswerDisplay(Protocol):
    """Where an answer is shown as it is written; see `app.chat.session.ChatView`."""

    async def write(self, message: Message, chunk: StreamChunk) -> None: ...


class AnsweredChat(Protocol):
    """What an answer needs of the open chat."""

    stored: StoredChat
    conversation: Conversation
    pinned_model: str

    @property
    def view(self) -> AnswerDisplay | None:
        """Its display while it is shown."""

    @property
    def model(self) -> str:
        """The model that answers the next question."""


class AnswerRunner:
    """Runs the answers of a chat one after the other. `show` draws all messages; `on_change` is called when `figures`
    change, those of the last answer, which may be running.

    `thinking_id` names the running answer to the service while it has reasoning only, else it is empty.
    """

    def __init__(
        self,
        chat: AnsweredChat,
        connection: ChatConnection,
        clock: Clock,
        show: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self.is_streaming = False
        self.thinking_id = ""
        self.figures = AnswerFigures()
        self._chat = chat
        self._connection = connection
        self._clock = clock
        self._show = show
        self._on_change = on_change
        self._other_model = ""  # answers only this time
        self._n_context_before = 0  # with the question of the running answer

    @property
    def model(self) -> str:
        """The model of the running answer."""
        return self._other_model or self._chat.model

    @property
    def model_beside_connection(self) -> str:
        """That model if it is not the connection's; else an empty string."""
        return self._other_model or self._chat.pinned_model

    async def run(self, writer: AnswerWriter, target: AnswerTarget, tools: Sequence[Tool]) -> None:
        """Stream the answer to `target`, which may call `tools`, into `writer` and the view. Whatever ends it, the text
        so far is kept; an error is one of the conversation."""
        conversation = self._chat.conversation
        timer = AnswerTimer(self._clock, writer.message.stats)
        self._other_model = target.model if target.is_other else ""
        self.is_streaming = True
        writer.update(replace(writer.message, state=MessageState.PARTIAL, stats=timer.stats, calls=()))
        conversation.begin(writer.message)
        self._n_context_before = conversation.context_size(writer.message.id).n_tokens
        self._measure(timer)
        try:
            await self._show()
            turns = await self.turns(writer.message.id if target.continued else target.parent_id)
            await self._stream(turns, timer, writer, tools)
        except UserError as error:
            conversation.errors[writer.message.id] = _in_a_chat(error)
            if not self.model_beside_connection or isinstance(error, ServiceError):
                await self._connection.report_failure(error)
        finally:
            self.is_streaming = False
            self._other_model = self.thinking_id = ""
            if writer.message.state is MessageState.PARTIAL:
                writer.update(replace(writer.message, stats=timer.final_stats))
            conversation.end(writer.message)
            self._on_change()
            await self._show()

    async def turns(self, leaf_id: int | None) -> Sequence[ChatMessage]:
        """Return the turns up to a message with their pictures and sounds. Raises StorageError for a missing one."""
        conversation = self._chat.conversation
        parts = await self._chat.stored.media_parts(conversation.media_files(leaf_id))
        return conversation.turns(leaf_id, parts)

    def measure_branch(self) -> None:
        """Update the size of the context after another branch is shown."""
        size = self._chat.conversation.context_size(self._chat.conversation.leaf_id)
        self.figures = replace(self.figures, n_context_tokens=size.n_tokens, is_context_estimated=size.is_estimated)
        self._on_change()

    async def _stream(
        self, turns: Sequence[ChatMessage], timer: AnswerTimer, writer: AnswerWriter, tools: Sequence[Tool]
    ) -> None:
        is_new = turns[-1].role != "assistant"
        events = stream_answer(
            self._connection,
            turns,
            self._chat.conversation.settings.options,
            lambda: self.model_beside_connection,
            prompt_cache_key=self._chat.stored.prompt_cache_key,
            tools=tools,
        )
        async with aclosing(events):
            async for event in events:
                message = replace(writer.message, model=self.model) if is_new else writer.message
                if not isinstance(event, StreamChunk):
                    self.figures = AnswerFigures.of_cost(self.model, event)
                    writer.update(replace(message, state=MessageState.FINISHED, stats={**timer.stats, **asdict(event)}))
                    return
                timer.observe(event)
                writer.update(replace(_with_chunk(message, event), stats=timer.stats))
                await self._draw(writer.message, event, timer)

    async def _draw(self, message: Message, chunk: StreamChunk, timer: AnswerTimer) -> None:
        has_answer = bool(message.content or message.calls)
        self.thinking_id = "" if has_answer or not message.reasoning else chunk.response_id
        self._chat.conversation.messages[message.id] = message
        self._measure(timer)
        if self._chat.view is not None:
            await self._chat.view.write(message, chunk)

    def _measure(self, timer: AnswerTimer) -> None:
        """Update the figures of the running answer."""
        self.figures = AnswerFigures(
            model=self.model,
            tokens_per_s=timer.tokens_per_s,
            time_to_first_token_s=timer.time_to_first_token_s,
            n_context_tokens=self._n_context_before + timer.n_tokens,
            is_context_estimated=True,
        )
        self._on_change()


def _with_chunk(message: Message, chunk: StreamChunk) -> Message:
    content, reasoning = message.content + chunk.text, message.reasoning + chunk.reasoning
    return replace(message, content=content, reasoning=reasoning, calls=with_deltas(message.calls, chunk.calls))


def _in_a_chat(error: UserError) -> UserError:
    """Return an error with the remedy that a chat has for it."""
    return NoTemplateError(error.cause, _NO_TEMPLATE) if isinstance(error, NoTemplateError) else error
