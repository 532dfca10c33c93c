"""One exchange of the open chat: a question that is stored, its answer, and what that calls, until an answer calls
nothing.

Owns the order of storing, making room, answering and running calls, and what becomes of an exchange that cannot be
stored. Streaming is `runner`'s, calls are `rounds`', summaries are `room`'s; `tui.chat.open_chat` decides what is asked
when.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from app.chat.conversation import Message, MessageContent
from app.protocol.tools import ToolDefinition
from quantizer.system.errors import StorageError
from tui.chat.answer.room import ContextRoom
from tui.chat.answer.rounds import Rounds, rounds_of
from tui.chat.answer.runner import AnswerRunner
from tui.chat.answer.turns import made_calls
from tui.chat.conversation import UNSAVED_ID, Conversation, RemovedMessages
from tui.chat.repository import AnswerTarget, StoredChat


class AskedChat(Protocol):
    """What an exchange needs of the open chat."""

    stored: StoredChat
    conversation: Conversation

    @property
    def model(self) -> str:
        """The model that answers the next question."""

    async def remove(self, message_id: int) -> RemovedMessages:
        """Remove a message with its descendants. Raises StorageError."""


class Exchanges:
    """Runs the exchanges of one chat, one after the other. `show` draws the messages.

    Each method returns when the answer has ended; an error that ended it is one of the conversation. `offered` are the
    tools that the last request offered.
    """

    def __init__(
        self,
        chat: AskedChat,
        answers: AnswerRunner,
        rounds: Rounds,
        room: ContextRoom,
        show: Callable[[], Awaitable[None]],
    ) -> None:
        self.offered: Sequence[ToolDefinition] = ()
        self._chat = chat
        self._answers = answers
        self._rounds = rounds
        self._room = room
        self._show = show

    async def ask(self, question: MessageContent, parent_id: int | None) -> None:
        """Store `question` after a message, and answer it. One that cannot be stored is not sent."""
        chat, conversation, model = self._chat, self._chat.conversation, self._chat.model
        question = MessageContent(role="user", content=question.content, attachments=question.attachments)
        try:
            await chat.stored.prepare(question.content, model, conversation.settings)
            message = await chat.stored.add_message(parent_id, question)
        except StorageError as error:
            conversation.add(_unsaved(question, parent_id))
            await self._fail(UNSAVED_ID, error)
            return
        conversation.add(message)
        await self.answer(AnswerTarget(message.id, model))

    async def answer_again(self, question: Message) -> None:
        """Answer `question` once more; the former answer stays as a version, unless it is blank."""
        try:
            await self._remove_blank_answers(question.id)
        except StorageError as error:
            await self._fail(question.id, error)
        else:
            leaf_id = self._chat.conversation.summary_after(question.id) or question.id
            await self.answer(AnswerTarget(leaf_id, self._chat.model))

    async def answer(self, target: AnswerTarget, n_granted: int = 0) -> None:
        """Answer, run what the answer calls, and answer again, until an answer calls nothing. `n_granted` rounds since
        the question are not counted."""
        stored, conversation = self._chat.stored, self._chat.conversation
        following: AnswerTarget | None = target
        overflown: AnswerTarget | None = None  # answered again after compaction
        try:
            await stored.prepare("", self._chat.model, conversation.settings)
            while following is not None:
                self.offered = await self._rounds.offered()
                following = await self._room.for_answer(following)
                async with stored.writing(following) as writer:
                    await self._answers.run(writer, following, self.offered)
                overflown = None if overflown else await self._room.after_overflow(following, writer.message)
                following = overflown or await self._rounds.after(target, n_granted)
        except StorageError as error:
            await self._fail(conversation.leaf_id, error)

    async def go_on(self, unfinished: Message) -> None:
        """Continue an unfinished answer: its text, or after its calls. Calls that were never begun run now, one that
        was begun is never run again; the rounds are counted anew."""
        if unfinished.role == "tool" or made_calls(unfinished):
            await self._run_calls_left()
        elif unfinished.content:
            model = unfinished.model or self._chat.model
            await self.answer(AnswerTarget(unfinished.parent_id, model, unfinished))
        else:
            await self._answer_after_calls(unfinished)

    async def _run_calls_left(self) -> None:
        """Run the calls of the last answer that were not begun, then answer."""
        chat, conversation = self._chat, self._chat.conversation
        conversation.errors.pop(conversation.leaf_id or UNSAVED_ID, None)  # the question whether to go on
        n_granted = len(rounds_of(conversation.branch))
        try:
            await chat.stored.prepare("", chat.model, conversation.settings)
            following = await self._rounds.after(AnswerTarget(None, chat.model), n_granted)
        except StorageError as error:
            await self._fail(conversation.leaf_id, error)
        else:
            if following is not None:
                await self.answer(following, n_granted)

    async def _answer_after_calls(self, blank: Message) -> None:
        """Answer in place of an answer without text that followed calls."""
        try:
            if not blank.reasoning:
                await self._chat.remove(blank.id)
        except StorageError as error:
            await self._fail(blank.id, error)
        else:
            n_granted = len(rounds_of(self._chat.conversation.branch))
            await self.answer(AnswerTarget(blank.parent_id, self._chat.model), n_granted)

    async def _remove_blank_answers(self, question_id: int) -> None:
        """Remove answers without text or reasoning: each would only be an empty version."""
        for message in list(self._chat.conversation.messages.values()):
            is_blank = not message.content and not message.reasoning and not message.calls
            if message.parent_id == question_id and message.role == "assistant" and is_blank:
                await self._chat.remove(message.id)

    async def _fail(self, message_id: int | None, error: StorageError) -> None:
        assert message_id is not None
        self._chat.conversation.errors[message_id] = error
        await self._show()


def _unsaved(question: MessageContent, parent_id: int | None) -> Message:
    return Message(
        id=UNSAVED_ID,
        parent_id=parent_id,
        role="user",
        content=question.content,
        attachments=question.attachments,
    )
