"""One chat with one model: its messages, the running answer, its figures and its title.

Owns an answer from question to end, edits of the branches, and the title that the model generates while it is idle.
Sees widgets only as a `ChatView`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Protocol

from app.chat.conversation import Message, MessageContent, MessageState, provisional_title
from app.chat.sampling_options import valid_options
from app.protocol.chat import GenerationOptions, TextDelta
from app.protocol.chat import Message as ChatMessage
from app.terminal import printable_line
from quantizer.errors import StorageError, UserError
from tui.chat.answer_stream import AnswerFigures, AnswerTimer, Clock, StreamChunk, stream_answer
from tui.chat.conversation import UNSAVED_ID, Conversation, Ending, RemovedMessages, TranscriptEntry
from tui.chat.format import Status, status_of
from tui.chat.repository import AnswerTarget, AnswerWriter, ChatRepository
from tui.connection import ChatBackend, ServiceConnection

if TYPE_CHECKING:
    from app.protocol.status import ModelStatus

__all__ = ["ChatSession", "ChatView", "generate_title", "is_idle", "needs_title", "parse_title"]

_REQUEST = "Give this conversation a title of two to six words. Answer with the title alone."
_MAX_TOKENS = 32
_GUIDE = "guide"  # only answers questions about localllm
_TRIMMED = " \t#*_`\"'“”‘’«»."


class ChatView(Protocol):
    """The display of a chat."""

    async def show(self, entries: Sequence[TranscriptEntry]) -> None:
        """Show exactly these messages."""

    async def write(self, message: Message, chunk: StreamChunk) -> None:
        """Append `chunk` to the last message, which is running and now equals `message`."""


class ChatSession:
    """Answers one question at a time. Calls `on_change` when `status` changes."""

    def __init__(
        self, connection: ServiceConnection, repository: ChatRepository, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self.conversation = Conversation()
        self._connection = connection
        self._repository = repository
        self._clock = clock
        self._on_change = on_change
        self._timer: AnswerTimer | None = None
        self._n_context_before = 0  # with the question of the running answer
        self._figures = AnswerFigures()

    @property
    def connection(self) -> ServiceConnection:
        """The service that answers, and the model."""
        return self._connection

    @property
    def status(self) -> Status:
        """The current content of the status line."""
        return status_of(self._connection.state, self._figures, is_running=self._timer is not None)

    async def open(self, chat_id: int | None = None, message_id: int | None = None) -> None:
        """Open a stored chat, without an id the latest one, on a branch with `message_id` if it has that message.
        Raises StorageError, UnknownChatError."""
        self.conversation = await self._repository.open(chat_id)
        if message_id in self.conversation.messages:
            self.conversation.show(message_id)
        self._figures = self._stored_figures()
        self._on_change()

    def new_chat(self) -> None:
        """Start an empty chat."""
        self._repository.close()
        self.conversation = Conversation()
        self._figures = self._stored_figures()
        self._on_change()

    # Answers: cancelling one stops it and keeps its text

    async def ask(self, question: MessageContent, view: ChatView) -> None:
        """Ask `question` after the shown branch. A question that cannot be stored is not sent."""
        if self.conversation.leaf_id == UNSAVED_ID:
            await self.remove(UNSAVED_ID)
        await self._ask(question, self.conversation.leaf_id, view)

    async def ask_instead(self, message_id: int, question: MessageContent, view: ChatView) -> None:
        """Ask `question` in place of another one, which stays as a version."""
        await self._ask(question, self.conversation.messages[message_id].parent_id, view)

    async def answer_again(self, view: ChatView, message_id: int | None = None) -> bool:
        """Answer the question of a message again, without an id the last question; the former answer stays as a
        version. Return False if there is no question."""
        conversation = self.conversation
        leaf_id = message_id or conversation.leaf_id
        question = None if leaf_id is None else conversation.question_of(leaf_id)
        if question is None:
            return False
        if conversation.leaf_id == UNSAVED_ID:
            await self.ask(conversation.messages[UNSAVED_ID], view)
            return True
        await self._remove_blank_answers(question.id)
        await self._answer(AnswerTarget(question.id, self._connection.state.model), view)
        return True

    def unfinished_answer(self) -> Message | None:
        """Return the last answer if it was stopped or cut off and has text."""
        entries = self.conversation.entries()
        last = entries[-1] if entries else None
        if last is None or last.message.role != "assistant" or last.ending is Ending.COMPLETE:
            return None
        return last.message if last.message.content else None

    async def continue_answer(self, answer: Message, view: ChatView) -> None:
        """Continue an unfinished answer."""
        target = AnswerTarget(answer.parent_id, answer.model or self._connection.state.model, answer)
        await self._answer(target, view)

    async def update_title(self) -> None:
        """Generate a title after the first answer; if that fails, the question stays the title."""
        branch = self.conversation.branch
        if not needs_title(branch):
            return
        set_title = self._repository.title_setter(branch[0].content)
        with suppress(UserError):  # the next question reports it
            client = await self._connection.client()
            turns = self.conversation.turns(branch[1].id)
            if title := await generate_title(client, self._connection.state.model, turns):
                await set_title(title)

    # Branches. Each raises StorageError.

    async def step_to_version(self, message_id: int, n_steps: int) -> int | None:
        """Show the version `n_steps` to the right of a message; return its id, or None if there is none."""
        version_id = self.conversation.step_to_version(message_id, n_steps)
        if version_id is not None:
            await self._repository.show(self.conversation.leaf_id)
        return version_id

    async def remove(self, message_id: int) -> RemovedMessages:
        """Remove a message with its descendants."""
        removed = self.conversation.remove(message_id)
        if message_id != UNSAVED_ID:
            await self._repository.remove(message_id, self.conversation.leaf_id)
        return removed

    async def restore(self, removed: RemovedMessages) -> None:
        """Undo a removal."""
        self.conversation.restore(removed)
        await self._repository.restore(removed)

    # One exchange

    async def _ask(self, question: MessageContent, parent_id: int | None, view: ChatView) -> None:
        conversation, model = self.conversation, self._connection.state.model
        question = MessageContent(role="user", content=question.content, attachments=question.attachments)
        try:
            await self._repository.prepare(question.content, model, conversation.settings)
            message = await self._repository.add_question(parent_id, question)
        except StorageError as error:
            conversation.add(
                Message(
                    id=UNSAVED_ID,
                    parent_id=parent_id,
                    role="user",
                    content=question.content,
                    attachments=question.attachments,
                )
            )
            await self._fail(UNSAVED_ID, error, view)
            return
        conversation.add(message)
        await self._answer(AnswerTarget(message.id, model), view)

    async def _answer(self, target: AnswerTarget, view: ChatView) -> None:
        conversation = self.conversation
        try:
            await self._repository.prepare("", target.model, conversation.settings)
            async with self._repository.writing(target) as writer:
                await self._run(writer, target, view)
        except StorageError as error:
            await self._fail(conversation.leaf_id, error, view)

    async def _run(self, writer: AnswerWriter, target: AnswerTarget, view: ChatView) -> None:
        """Stream the answer into `writer` and `view`. Whatever ends it, the text so far is kept."""
        conversation = self.conversation
        timer = self._timer = AnswerTimer(self._clock, writer.message.stats)
        writer.update(replace(writer.message, state=MessageState.PARTIAL, stats=timer.stats))
        conversation.begin(writer.message)
        self._n_context_before = conversation.context_size(writer.message.id).n_tokens
        self._measure(timer)
        try:
            await view.show(conversation.entries())
            turns = conversation.turns(writer.message.id if target.continued else target.parent_id)
            await self._stream(turns, timer, writer, view)
        except UserError as error:
            conversation.errors[writer.message.id] = error
            await self._connection.report_failure(error)
        finally:
            self._timer = None
            if writer.message.state is MessageState.PARTIAL:
                writer.update(replace(writer.message, stats=timer.final_stats))
            conversation.end(writer.message)
            self._on_change()
            await view.show(conversation.entries())

    async def _stream(
        self, turns: Sequence[ChatMessage], timer: AnswerTimer, writer: AnswerWriter, view: ChatView
    ) -> None:
        sampler = valid_options(self.conversation.settings.options)
        async with aclosing(stream_answer(self._connection, turns, sampler)) as events:
            async for event in events:
                message = writer.message
                if not isinstance(event, StreamChunk):
                    self._figures = AnswerFigures.of_cost(self._connection.state.model, event)
                    writer.update(replace(message, state=MessageState.FINISHED, stats={**timer.stats, **asdict(event)}))
                    return
                timer.observe(event)
                content, reasoning = message.content + event.text, message.reasoning + event.reasoning
                writer.update(replace(message, content=content, reasoning=reasoning, stats=timer.stats))
                self._measure(timer)
                await view.write(writer.message, event)

    def _measure(self, timer: AnswerTimer) -> None:
        """Update the figures of the running answer."""
        self._figures = AnswerFigures(
            model=self._connection.state.model,
            tokens_per_s=timer.tokens_per_s,
            time_to_first_token_s=timer.time_to_first_token_s,
            n_context_tokens=self._n_context_before + timer.n_tokens,
            is_context_estimated=True,
        )
        self._on_change()

    def _stored_figures(self) -> AnswerFigures:
        """Return the figures of a chat just opened: only the context that it uses."""
        size = self.conversation.context_size(self.conversation.leaf_id)
        return AnswerFigures(
            model=self._connection.state.model,
            n_context_tokens=size.n_tokens,
            is_context_estimated=size.is_estimated,
        )

    async def _fail(self, message_id: int | None, error: StorageError, view: ChatView) -> None:
        assert message_id is not None
        self.conversation.errors[message_id] = error
        await view.show(self.conversation.entries())

    async def _remove_blank_answers(self, question_id: int) -> None:
        """Remove answers without text or reasoning: each would only be an empty version."""
        for message in list(self.conversation.messages.values()):
            is_blank = not message.content and not message.reasoning
            if message.parent_id == question_id and message.role == "assistant" and is_blank:
                await self.remove(message.id)


def needs_title(branch: Sequence[Message]) -> bool:
    """Return whether the chat has exactly one question and its finished answer."""
    if [message.role for message in branch] != ["user", "assistant"]:
        return False
    return branch[1].state is MessageState.FINISHED and bool(branch[1].content)


def is_idle(model: ModelStatus | None) -> bool:
    """Return whether `model` can generate titles and has no other requests."""
    if model is None or model.id == _GUIDE or model.occupancy is None:
        return False
    return model.occupancy.n_running == model.occupancy.n_waiting == 0


async def generate_title(client: ChatBackend, model: str, turns: Sequence[ChatMessage]) -> str:
    """Return a title for `turns`, "" if the model is busy or returns none. Cancelling stops it. Raises UserError."""
    if not is_idle((await client.status()).model(model)):
        return ""
    messages = [*turns, ChatMessage("user", _REQUEST)]
    options = GenerationOptions(temperature=0.0, max_tokens=_MAX_TOKENS)
    async with aclosing(client.chat(messages, model=model, options=options)) as events:
        parts = [event.text async for event in events if isinstance(event, TextDelta)]
    return parse_title("".join(parts))


def parse_title(answer: str) -> str:
    """Return the title in a model's response: its first line of words without quotes or markup, shortened."""
    lines = (printable_line(line).strip(_TRIMMED) for line in answer.splitlines())
    line = next(filter(None, lines), "")
    label, colon, rest = line.partition(":")
    title = rest if colon and label.strip(_TRIMMED).casefold() == "title" else line
    return provisional_title(title.strip(_TRIMMED))
