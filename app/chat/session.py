"""One open chat: its messages, the running answer with its figures, the questions that wait for it, and its title.

An answer belongs to its chat: it goes on while another chat is shown. Owns what is answered when, and edits of the
branches; an answer from question to end is `app.chat.session`'s. Sees widgets only as a `ChatView`, while it
is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from app.chat.answers import AnswerRunner
from app.chat.approvals import ApprovalQueue
from app.chat.backend import ChatConnection
from app.chat.branches import UNSAVED_ID, Conversation, RemovedMessages, TranscriptEntry
from app.chat.compaction import TOKENS_AFTER
from app.chat.context_tokens import estimated_tokens
from app.chat.conversation import Draft, Message, MessageContent, provisional_title
from app.chat.repository import AnswerTarget, OpenedChat, StoredChat
from app.chat.rounds import Rounds, rounds_of
from app.chat.sampling_options import template_of
from app.chat.steps import StepHistory, UndoneStep
from app.chat.stream import AnswerFigures, Clock, StreamChunk
from app.chat.summaries import AutoCompaction, Compactor, ContextRoom
from app.chat.titles import generate_title, needs_title
from app.chat.turns import made_calls
from app.protocol.chat import Tool
from app.protocol.errors import NoTemplateError
from app.tools.approval import Approver
from app.tools.backend import ToolBackend
from quantizer.system.errors import StorageError, UserError


class ChatView(Protocol):
    """The display of a chat."""

    async def show(self, entries: Sequence[TranscriptEntry]) -> None:
        """Show exactly these messages."""

    async def write(self, message: Message, chunk: StreamChunk) -> None:
        """Append `chunk` to the last message, which is running and now equals `message`."""

    async def note(self, text: str) -> None:
        """Append a line about the chat, which is no message."""


class OpenChat:
    """Answers one question at a time; later ones wait in `queue`. Calls `on_change` when its figures, its queue or
    `is_answering` change.

    `view` is its display while it is shown. `pinned_model` answers instead of the connection's model; it is set while
    another chat is shown. `unsent` is the text in its prompt, `left_unsent` that when another chat was shown.

    `tools` runs what answers call, None for a chat without tools. `approvals` are the questions about calls, which wait
    for the person; they are put by `approver`, unless that is replaced.
    """

    def __init__(
        self,
        opened: OpenedChat,
        connection: ChatConnection,
        clock: Clock,
        on_change: Callable[[OpenChat], None],
        tools: ToolBackend | None = None,
        compaction: Callable[[], AutoCompaction] = AutoCompaction,
    ) -> None:
        self.stored = opened.stored
        self.conversation = opened.conversation
        self.model_of_last_answer = opened.model
        self.view: ChatView | None = None
        self.pinned_model = ""
        self.unsent = self.left_unsent = Draft()
        self.queue: tuple[MessageContent, ...] = ()
        self._connection = connection
        self._on_change = on_change
        self.approvals = ApprovalQueue(lambda: on_change(self))
        self.approver: Approver = self.approvals
        self._answers = AnswerRunner(self, connection, clock, self._show, lambda: on_change(self))
        self._rounds = Rounds(self, tools, self._show, lambda: on_change(self))
        self._compactor = Compactor(self, connection, compaction, self._show, lambda: on_change(self))
        self._room = ContextRoom(self, self._compactor, self._answers, self._show)
        self._exchanges = Exchanges(self, self._answers, self._rounds, self._room, self._show)
        self._steps = StepHistory(self.stored, self.conversation, tools)
        self._running: asyncio.Task[None] | None = None
        self._titling: asyncio.Task[None] | None = None
        size = self.conversation.context_size(self.conversation.leaf_id)
        self._answers.figures = AnswerFigures(
            model=opened.model or self.model, n_context_tokens=size.n_tokens, is_context_estimated=size.is_estimated
        )

    @property
    def model(self) -> str:
        """The model that answers the next question."""
        return self.pinned_model or self._connection.state.model

    @property
    def n_ctx(self) -> int:
        """The context of the connection's model in tokens, 0 if unknown."""
        return self._connection.state.n_ctx

    @property
    def figures(self) -> AnswerFigures:
        """The figures of the last answer, which may be running."""
        return self._answers.figures

    @property
    def is_streaming(self) -> bool:
        """Whether an answer or a summary was begun and has not ended: it streams, or a tool that it called runs."""
        return self._answers.is_streaming or self._rounds.is_calling or self._compactor.is_writing

    @property
    def is_compacting(self) -> bool:
        """Whether a summary is being written."""
        return self._compactor.is_writing

    @property
    def answering_model(self) -> str:
        """The model of the running answer."""
        return self._answers.model

    @property
    def offered(self) -> Sequence[Tool]:
        """The tools that the last request offered."""
        return self._exchanges.offered

    @property
    def model_beside_connection(self) -> str:
        """The model of the running answer if that is not the connection's; else an empty string."""
        return self._answers.model_beside_connection

    @property
    def is_thinking(self) -> bool:
        """Whether the running answer has reasoning only, which `end_thought` ends."""
        return bool(self._answers.thinking_id)

    @property
    def is_answering(self) -> bool:
        """Whether a question is waiting for its answer or the answer is running."""
        return self._running is not None and not self._running.done()

    @property
    def has_news(self) -> bool:
        """Whether the chat is answering or generating its title, or has questions or errors that are not stored."""
        is_titling = self._titling is not None and not self._titling.done()
        return self.is_answering or is_titling or bool(self.queue or self.conversation.errors)

    @property
    def title(self) -> str:
        """The first question, shortened."""
        questions = (message.content for message in self.conversation.branch if message.role == "user")
        return provisional_title(next(questions, ""))

    # Answers. Each method returns at once; `wait` returns at the end, and cancelling it stops the answer.

    def ask(self, question: MessageContent) -> None:
        """Ask `question` after the shown branch, or let it wait while an answer is running. A question that cannot be
        stored is not sent."""
        question = MessageContent(role="user", content=question.content, attachments=question.attachments)
        if self.is_answering:
            self.queue = (*self.queue, question)
            self._on_change(self)
        else:
            self._start(partial(self._ask_at_leaf, question))

    def ask_instead(self, message_id: int, question: MessageContent) -> None:
        """Ask `question` in place of another one, which stays as a version."""
        self._start(partial(self._exchanges.ask, question, self.conversation.messages[message_id].parent_id))

    def answer_again(self, message_id: int | None = None) -> bool:
        """Answer the question of a message again, without an id the last question; the former answer stays as a
        version. Return False if there is no question."""
        conversation = self.conversation
        leaf_id = message_id or conversation.leaf_id
        question = None if leaf_id is None else conversation.question_of(leaf_id)
        if question is None:
            return False
        if conversation.leaf_id == UNSAVED_ID:
            self._start(partial(self._ask_at_leaf, conversation.messages[UNSAVED_ID]))
        else:
            self._start(partial(self._exchanges.answer_again, question))
        return True

    @property
    def lacks_template(self) -> bool:
        """Whether the last question failed because the model has no chat template."""
        entries = self.conversation.entries()
        return bool(entries) and isinstance(entries[-1].error, NoTemplateError)

    def continue_answer(self, answer: Message) -> None:
        """Continue an unfinished answer, see `Exchanges.go_on`."""
        self._start(partial(self._exchanges.go_on, answer))

    def compact(self, focus: str = "") -> None:
        """Summarise the older messages now; `focus` is what to keep in mind above all."""
        self._start(partial(self._room.make_now, focus))

    def compare(self, model: str) -> bool:
        """Answer the last question with another model, beside the present answer. Return False if there is none."""
        answers = [message for message in self.conversation.branch if message.role == "assistant"]
        question = self.conversation.question_of(answers[-1].id) if answers else None
        if question is None or self.is_answering:
            return False
        followed = self.conversation.branch[self.conversation.branch.index(question) :]
        first = next(message for message in followed if message.role == "assistant")  # others follow its calls
        self.conversation.compare_last(first.id)
        self._start(partial(self._exchanges.answer, AnswerTarget(first.parent_id, model, is_other=True)))
        return True

    async def show_beside(self) -> bool:
        """Show two versions of the last answer side by side, or one again; return False if it has only one."""
        is_possible = self.conversation.compare_last()
        await self._show()
        return is_possible

    async def toggle_figures(self) -> bool:
        """Show the figures below each answer, or hide them; return whether they are shown."""
        self.conversation.shows_figures = not self.conversation.shows_figures
        await self._show()
        return self.conversation.shows_figures

    def take_back(self) -> Draft | None:
        """Remove the last waiting question and return it; None if none waits."""
        if not self.queue:
            return None
        *others, last = self.queue
        self.queue = tuple(others)
        self._on_change(self)
        return Draft(last.content, last.attachments)

    def take_back_all(self) -> Draft | None:
        """Remove all waiting questions and return them as one text; None if none waits."""
        if not self.queue:
            return None
        questions, self.queue = self.queue, ()
        self._on_change(self)
        return joined(*(Draft(question.content, question.attachments) for question in questions))

    @property
    def draft(self) -> Draft:
        """Everything in this chat that is not sent yet: waiting questions, then the text in the prompt."""
        return joined(*(Draft(question.content, question.attachments) for question in self.queue), self.unsent)

    async def wait(self) -> None:
        """Wait until no answer runs and no question waits."""
        if self._running is not None:
            await self._running

    async def stop(self) -> None:
        """Stop the answer and keep its text."""
        running = self._running
        if running is not None:
            running.cancel()
            await asyncio.wait({running})

    async def end_thought(self) -> bool:
        """Let the running answer begin now; return False if it is not thinking. Raises UserError."""
        thinking_id, self._answers.thinking_id = self._answers.thinking_id, ""
        if thinking_id:
            beside = self.model_beside_connection
            client = await (self._connection.service() if beside else self._connection.client())
            await client.end_thought(thinking_id)
        return bool(thinking_id)

    async def undo_step(self) -> UndoneStep | None:
        """Take back the last step of the shown branch, with the files that it changed; its messages stay as another
        version (`app.chat.steps` says what a step is). Return None while an answer runs, and in an empty chat.
        Raises StorageError, having changed nothing, for a file that was changed since."""
        step = None if self.is_answering else await self._steps.undo()
        self._answers.measure_branch()
        await self._show()
        return step

    async def redo_step(self) -> UndoneStep | None:
        """Do again what `undo_step` took back last, files included. Return None if nothing was, if the chat went on, or
        while an answer runs. Raises as `undo_step`."""
        step = None if self.is_answering else await self._steps.redo()
        self._answers.measure_branch()
        await self._show()
        return step

    async def close(self) -> None:
        """Stop the answer and the generation of a title."""
        await self.stop()
        if self._titling is not None:
            self._titling.cancel()
            await asyncio.wait({self._titling})

    # Branches. Each raises StorageError.

    async def step_to_version(self, message_id: int, n_steps: int) -> int | None:
        """Show the version `n_steps` to the right of a message; return its id, or None if there is none."""
        version_id = self.conversation.step_to_version(message_id, n_steps)
        if version_id is not None:
            await self.stored.show(self.conversation.leaf_id)
            self._answers.measure_branch()
        return version_id

    async def remove(self, message_id: int) -> RemovedMessages:
        """Remove a message with its descendants."""
        removed = self.conversation.remove(message_id)
        if message_id != UNSAVED_ID:
            await self.stored.remove(message_id, self.conversation.leaf_id)
            self._answers.measure_branch()
        return removed

    async def edit_summary(self, message_id: int, text: str) -> None:
        """Show a version of a summary with another text."""
        former = self.conversation.messages[message_id]
        stats = dict(former.stats)
        if isinstance(n_after := stats.get(TOKENS_AFTER), int):
            stats[TOKENS_AFTER] = max(0, n_after + estimated_tokens(text) - estimated_tokens(former.content))
        summary = MessageContent(role="summary", content=text, n_kept=former.n_kept, stats=stats)
        self.conversation.add(await self.stored.add_message(former.parent_id, summary))
        self._answers.measure_branch()
        await self._show()

    async def restore(self, removed: RemovedMessages) -> None:
        """Undo a removal."""
        self.conversation.restore(removed)
        await self.stored.restore(removed)
        self._answers.measure_branch()

    # From one answer to the next

    def _start(self, answering: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._titling is not None:
            self._titling.cancel()  # a title can wait, the user cannot
        self._running = asyncio.create_task(self._answer_all(answering))
        self._running.add_done_callback(lambda _: self._on_change(self))
        self._on_change(self)

    async def _answer_all(self, answering: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Answer, and then the waiting questions; after an answer that was stopped or failed they wait on."""
        self._room.may_compact = True
        await answering()
        while self.queue and self.conversation.is_answered:
            question, *others = self.queue
            self.queue = tuple(others)
            self._on_change(self)
            if self.view is None:
                with suppress(StorageError):  # saving the question reports it
                    await self.stored.save_draft(self.draft)
            await self._ask_at_leaf(question)
        self._titling = asyncio.create_task(self._update_title())
        self._titling.add_done_callback(lambda _: self._on_change(self))

    async def _update_title(self) -> None:
        """Generate a title after the first answer; if that fails, the question stays the title."""
        branch = self.conversation.branch
        if self.stored.id is None or not needs_title(branch) or template_of(self.conversation.settings.options):
            return
        with suppress(UserError):  # the next question reports it
            client = await self._connection.client()
            turns, key = await self._answers.turns(branch[-1].id), self.stored.prompt_cache_key
            if title := await generate_title(client, self.model, turns, key, self._exchanges.offered):
                await self.stored.set_title(branch[0].content, title)

    async def _ask_at_leaf(self, question: MessageContent) -> None:
        if self.conversation.leaf_id == UNSAVED_ID:
            await self.remove(UNSAVED_ID)
        if await self._has_room_for(question):
            await self._exchanges.ask(question, self.conversation.leaf_id)

    async def _has_room_for(self, question: MessageContent) -> bool:
        """Make room for a question that is not stored yet; return False if it was taken back meanwhile. It waits with
        the others, so that it is not lost if this is stopped."""
        leaf_id = self.conversation.leaf_id
        if self._connection.state.phase != "ready" or not self._room.is_near(leaf_id, question):
            return True
        self.queue = (question, *self.queue)
        self._on_change(self)
        await self._room.make(leaf_id, question)
        is_waiting = any(each is question for each in self.queue)
        self.queue = tuple(each for each in self.queue if each is not question)
        self._on_change(self)
        return is_waiting

    async def _show(self) -> None:
        if self.view is not None:
            await self.view.show(self.conversation.entries())


def joined(*drafts: Draft) -> Draft:
    """Return several unsent texts as one."""
    texts = (draft.text for draft in drafts)
    return Draft("\n\n".join(filter(None, texts)), tuple(each for draft in drafts for each in draft.attachments))


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
        self.offered: Sequence[Tool] = ()
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
