"""One chat with one model: what was said, the answer that is running, and its figures.

Owns the course of an answer from question to ending, and what may become of one that is there. Knows widgets only as a
`ChatView`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from app.chat.conversation import Message, MessageContent, Scalar
from app.chat.sampling_options import sampler_of
from quantizer.errors import StorageError, UserError
from tui.chat.answer_stream import AnswerTimer, Clock, ReasoningTimer, RunningAnswer, StreamChunk
from tui.chat.conversation import UNSAVED_ID, Conversation, Ending, RemovedMessages, TranscriptEntry
from tui.chat.format import Status, status_of
from tui.chat.repository import AnswerTarget, AnswerWriter, ChatRepository
from tui.chat.titles import generate_title, needs_title
from tui.connection.connection import ServiceConnection

if TYPE_CHECKING:
    from app.client import Completed

__all__ = ["ChatSession", "ChatView"]


class ChatView(Protocol):
    """Where the chat is shown."""

    async def show(self, entries: Sequence[TranscriptEntry]) -> None:
        """Show these messages and no others."""

    async def write(self, portion: StreamChunk, stats: Mapping[str, Scalar]) -> None:
        """Append to the last message, which is running; `stats` are its figures so far."""


class ChatSession:
    """Answers one question at a time. `on_change` is called when `status` has something new to say."""

    def __init__(
        self, connection: ServiceConnection, keeper: ChatRepository, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self.conversation = Conversation()
        self._connection = connection
        self._keeper = keeper
        self._clock = clock
        self._on_change = on_change
        self._meter: AnswerTimer | None = None
        self._cost: Completed | None = None

    @property
    def status(self) -> Status:
        """What the status line should say now."""
        return status_of(self._connection.state, self._meter, self._cost)

    async def reopen(self, chat_id: int | None = None, message_id: int | None = None) -> None:
        """Go on with a chat that is kept, without an id the last one, in a branch with `message_id` if that is one of
        its messages. Raises StorageError, UnknownChatError."""
        self.conversation = await self._keeper.reopen(chat_id)
        if message_id in self.conversation.messages:
            self.conversation.show(message_id)
        self._cost = None
        self._on_change()

    def start_over(self) -> None:
        """Begin an empty chat."""
        self._keeper.start_over()
        self.conversation = Conversation()
        self._cost = None
        self._on_change()

    # Answers: cancelling one stops it and keeps what came of it

    async def ask(self, question: MessageContent, view: ChatView) -> None:
        """Ask `question` after what is shown. One that cannot be kept is not asked."""
        await self._forget_unkept()
        await self._ask(question, self.conversation.leaf_id, view)

    async def ask_instead(self, message_id: int, question: MessageContent, view: ChatView) -> None:
        """Ask `question` in the place of another one, which stays as a version."""
        await self._ask(question, self.conversation.messages[message_id].parent_id, view)

    async def answer_again(self, view: ChatView, message_id: int | None = None) -> bool:
        """Answer the question before (or at) a message again, without an id the last one; the answer that is there
        stays as a version. Return False, and do nothing, where nothing was asked."""
        conversation = self.conversation
        leaf_id = message_id or conversation.leaf_id
        question = None if leaf_id is None else conversation.question_of(leaf_id)
        if question is None:
            return False
        if conversation.leaf_id == UNSAVED_ID:
            await self.ask(conversation.messages[UNSAVED_ID], view)
            return True
        await self._forget_blank_answers(question.id)
        await self._answer(AnswerTarget(question.id, self._connection.state.model), view)
        return True

    def continuable(self) -> Message | None:
        """The answer at the end, where it was stopped or cut and can be written on."""
        entries = self.conversation.entries()
        last = entries[-1] if entries else None
        if last is None or last.message.role != "assistant" or last.ending is Ending.COMPLETE:
            return None
        return last.message if last.message.content else None

    async def go_on(self, answer: Message, view: ChatView) -> None:
        """Write an answer on from where it ended."""
        place = AnswerTarget(answer.parent_id, answer.model or self._connection.state.model, answer)
        await self._answer(place, view)

    async def generate_title(self) -> None:
        """Let the model find a title once the first answer is there; where it cannot, the question stays the title."""
        branch = self.conversation.branch
        if not needs_title(branch):
            return
        set_title = self._keeper.title_setter(branch[0].content)
        with suppress(UserError):  # whatever is wrong is told at the next question
            client = await self._connection.client()
            turns = self.conversation.turns(branch[1].id)
            if title := await generate_title(client, self._connection.state.model, turns):
                await set_title(title)

    # Branches. Each raises StorageError where it cannot be kept.

    async def step_to_version(self, message_id: int, n_steps: int) -> int | None:
        """Show the version `n_steps` to the right of a message; return its id, None where there is none."""
        version_id = self.conversation.step_to_version(message_id, n_steps)
        if version_id is not None:
            await self._keeper.show(self.conversation.leaf_id)
        return version_id

    async def remove(self, message_id: int) -> RemovedMessages:
        """Remove a message with all that follows it, in every branch."""
        removed = self.conversation.remove(message_id)
        if message_id != UNSAVED_ID:
            await self._keeper.remove(message_id, self.conversation.leaf_id)
        return removed

    async def put_back(self, removed: RemovedMessages) -> None:
        """Undo a removal."""
        self.conversation.put_back(removed)
        await self._keeper.put_back(removed)

    # How

    async def _ask(self, question: MessageContent, parent_id: int | None, view: ChatView) -> None:
        conversation, model = self.conversation, self._connection.state.model
        said = MessageContent(role="user", content=question.content, attachments=question.attachments)
        try:
            await self._keeper.prepare(question.content, model, conversation.settings)
            kept = await self._keeper.say(parent_id, said)
        except StorageError as error:
            unkept = Message(
                id=UNSAVED_ID, parent_id=parent_id, role="user", content=said.content, attachments=said.attachments
            )
            conversation.add(unkept)
            await self._fail(UNSAVED_ID, error, view)
            return
        conversation.add(kept)
        await self._answer(AnswerTarget(kept.id, model), view)

    async def _answer(self, place: AnswerTarget, view: ChatView) -> None:
        conversation = self.conversation
        try:
            await self._keeper.prepare("", place.model, conversation.settings)
            async with self._keeper.answering(place) as recording:
                await self._run(recording, place, view)
        except StorageError as error:
            await self._fail(conversation.leaf_id, error, view)

    async def _run(self, recording: AnswerWriter, place: AnswerTarget, view: ChatView) -> None:
        conversation = self.conversation
        thought = ReasoningTimer(self._clock, recording.message.stats)
        running = RunningAnswer(recording, AnswerTimer(self._clock), thought)
        conversation.begin(recording.message)
        self._meter = running.meter
        self._on_change()
        try:
            await view.show(conversation.entries())
            turns = conversation.turns(recording.message.id if place.continued else place.parent_id)
            sampler = sampler_of(conversation.settings.options)
            self._cost = await running.follow(self._connection, turns, sampler, self._shown_in(view, running))
        except UserError as error:
            conversation.errors[recording.message.id] = error
            await self._connection.lose(error)
        finally:
            self._meter = None
            conversation.end(running.message)
            self._on_change()
            await view.show(conversation.entries())

    def _shown_in(self, view: ChatView, running: RunningAnswer) -> Callable[[StreamChunk], Awaitable[None]]:
        async def shown(portion: StreamChunk) -> None:
            self._on_change()
            await view.write(portion, running.stats)

        return shown

    async def _fail(self, message_id: int | None, error: StorageError, view: ChatView) -> None:
        assert message_id is not None
        self.conversation.errors[message_id] = error
        await view.show(self.conversation.entries())

    async def _forget_unkept(self) -> None:
        if self.conversation.leaf_id == UNSAVED_ID:
            await self.remove(UNSAVED_ID)

    async def _forget_blank_answers(self, question_id: int) -> None:
        """Remove what came to nothing, not even a thought: it would only be a version without text."""
        for message in list(self.conversation.messages.values()):
            is_blank = not message.content and not message.reasoning
            if message.parent_id == question_id and message.role == "assistant" and is_blank:
                await self.remove(message.id)
