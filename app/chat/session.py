"""One open chat: commands in, events out. It answers in a task, so that an answer goes on while another chat is shown.

Owns what is answered when: the questions that wait, and the title after the first answer. What an exchange does is
`app.chat.exchange`'s; the events go to `view` while the chat is shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress

from app.chat.backend import ChatConnection
from app.chat.branches import UNSAVED_ID, RemovedMessages
from app.chat.compaction import TOKENS_AFTER, AutoCompaction, estimated_tokens
from app.chat.conversation import Message, MessageContent, MessageState, WrittenElsewhereError, provisional_title
from app.chat.events import Added, Changed, ChatEvent, Events, Note, Written
from app.chat.exchange import ask, ask_again, compare, go_on, remove
from app.chat.repository import AnswerTarget, OpenedChat
from app.chat.sampling_options import template_of
from app.chat.state import ChatState, Clock
from app.chat.steps import StepHistory, UndoneStep
from app.chat.stream import with_cache_key
from app.chat.summaries import is_near, make_room, make_room_now
from app.common.terminal import printable
from app.protocol.chat import AnswerDelta, GenerationOptions
from app.protocol.chat import Message as ChatMessage
from app.protocol.errors import NoTemplateError
from app.settings.settings import GUIDE
from app.tools.backend import ToolBackend
from quantizer.system.errors import StorageError, UserError

Draw = Callable[[ChatEvent], Awaitable[None]]

_OTHER_WINDOW = (
    "Another window wrote here meanwhile: your question begins a branch, and ‹ › switches between the two. "
    "/newest asks it after the newest message instead."
)
_WAITS_FOR_WINDOW = "Another window is answering here: your question waits until it has ended. Esc takes it back."
ANSWERED_ELSEWHERE = "Another window is answering here: its answer goes on by itself."
_FOLLOWED_EVERY_S = 0.5  # as often as an answer is saved


class OpenChat(ChatState):
    """Answers one question at a time; later ones wait in `queue`. Calls `on_change` when its figures, its queue, its
    `approvals` or `is_answering` change. `view` draws its events while it is shown. `unsent` is the text in its prompt,
    `left_unsent` that when another chat was shown."""

    def __init__(
        self,
        opened: OpenedChat,
        connection: ChatConnection,
        clock: Clock = time.monotonic,
        on_change: Callable[[OpenChat], None] = lambda _: None,
        tools: ToolBackend | None = None,
        compaction: Callable[[], AutoCompaction] = AutoCompaction,
        keeps_file_texts: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(
            opened,
            connection,
            tools=tools,
            clock=clock,
            compaction=compaction,
            on_approvals=lambda: on_change(self),
            keeps_file_texts=keeps_file_texts,
        )
        self.view: Draw | None = None
        self.unsent = self.left_unsent = MessageContent()
        self.queue: tuple[MessageContent, ...] = ()
        self._on_change = on_change
        self._steps = StepHistory(self.stored, self.conversation, tools)
        self._running: asyncio.Task[None] | None = None
        self._titling: asyncio.Task[None] | None = None
        self._branched_id: int | None = None  # the question that began a branch beside another window's

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

    @property
    def lacks_template(self) -> bool:
        """Whether the last question failed because the model has no chat template."""
        entries = self.conversation.entries()
        return bool(entries) and isinstance(entries[-1].error, NoTemplateError)

    # Answers. Each method returns at once; `wait` returns at the end, and cancelling it stops the answer.

    def ask(self, question: MessageContent) -> None:
        """Ask `question` after the shown branch, or let it wait while an answer is running. A question that cannot be
        stored is not sent."""
        if self.is_answering:
            self.queue = (*self.queue, question)
            self._on_change(self)
        else:
            self._start(self._ask_at_leaf(question))

    def ask_instead(self, message_id: int, question: MessageContent) -> None:
        """Ask `question` in place of another one, which stays as a version."""
        self._start(ask(self, question, self.conversation.messages[message_id].parent_id))

    def answer_again(self, message_id: int | None = None) -> bool:
        """Answer the question of a message again, without an id the last question; the former answer stays as a
        version. Return False if there is no question."""
        conversation = self.conversation
        leaf_id = message_id or conversation.leaf_id
        question = None if leaf_id is None else conversation.question_of(leaf_id)
        if question is None:
            return False
        if conversation.leaf_id == UNSAVED_ID:
            self._start(self._ask_at_leaf(conversation.messages[UNSAVED_ID]))
        else:
            self._start(ask_again(self, question))
        return True

    def continue_answer(self, answer: Message) -> None:
        """Continue an unfinished answer, see `go_on`."""
        self._start(go_on(self, answer), answer.id)

    def compact(self, focus: str = "") -> None:
        """Summarise the older messages now; `focus` is what to keep in mind above all. Nothing is summarised while
        another window goes on after them: its answer would be on another branch."""
        self._start(self._compact(focus), self.conversation.leaf_id)

    def compare(self, model: str) -> bool:
        """Answer the last question with another model, beside the present answer. Return False if there is none."""
        answers = [message for message in self.conversation.branch if message.role == "assistant"]
        question = self.conversation.question_of(answers[-1].id) if answers else None
        if question is None or self.is_answering:
            return False
        followed = self.conversation.branch[self.conversation.branch.index(question) :]
        first = next(message for message in followed if message.role == "assistant")  # others follow its calls
        self.conversation.compare_last(first.id)
        self._start(compare(self, AnswerTarget(first.parent_id, model, is_other=True)))
        return True

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
        thinking_id, self.thinking_id = self.thinking_id, ""
        if thinking_id:
            await (await self.client()).end_thought(thinking_id)
        return bool(thinking_id)

    async def close(self) -> None:
        """Stop the answer and the generation of a title."""
        await self.stop()
        if self._titling is not None:
            self._titling.cancel()
            await asyncio.wait({self._titling})

    # Other windows with this chat. Both raise StorageError.

    async def catch_up(self) -> bool:
        """Take over what other windows stored in this chat, and follow where they went on after the shown branch, also
        within an answer. Return whether there are more messages. Does nothing while an answer runs."""
        if self.is_answering:
            return False
        leaf_id = self.conversation.leaf_id
        async with aclosing(self._follow()) as events:
            async for event in events:
                await self._draw(event)
        return self.conversation.leaf_id != leaf_id

    async def go_to_newest(self) -> bool:
        """Show the branch with the newest message, and ask there what was asked beside another window; return False if
        it is shown already. Stops the answer."""
        await self.stop()
        await self._take_over()
        conversation = self.conversation
        question = conversation.messages.get(self._branched_id or UNSAVED_ID)
        if question is not None and question in conversation.branch:
            self._branched_id = None
            conversation.leaf_id = conversation.newest_leaf(without_id=question.id)
            self._start(ask(self, question, conversation.leaf_id))
            return True
        leaf_id = conversation.newest_leaf()
        if leaf_id == conversation.leaf_id:
            return False
        conversation.leaf_id = leaf_id
        await self.stored.show(leaf_id)
        self._measure()
        await self._draw(Changed())
        return True

    async def _take_over(self) -> None:
        conversation = self.conversation
        # Of an answer that another window was writing, there may be more by now.
        partial = MessageState.PARTIAL
        whole = [message.id for message in conversation.messages.values() if message.state is not partial]
        # The marks first: a message that ends between the two is then read as whole.
        elsewhere = await self.stored.written_elsewhere()
        unknown = await self.stored.unknown(whole)
        conversation.elsewhere = elsewhere
        conversation.merge(unknown)

    async def _follow(self) -> Events:
        """Take over what other windows stored, and yield what changed of the shown branch. Raises StorageError."""
        conversation = self.conversation
        before, was_answering = conversation.entries(), self.is_answering
        await self._take_over()
        if self.is_answering and not was_answering:  # the wait may have been long
            return
        former = before[-1].message if before else None
        last = conversation.messages.get(conversation.leaf_id or UNSAVED_ID)
        if former is not None and last is not None and last.content.startswith(former.content):
            text, thoughts = last.content[len(former.content) :], last.reasoning.removeprefix(former.reasoning)
            if text or last.reasoning != former.reasoning:
                yield Written(last, printable(text), printable(thoughts))
        if (following := conversation.newest_below_leaf()) is not None:
            conversation.leaf_id = following
        if conversation.entries() != before:
            self._measure()
            yield Changed()

    # Questions that wait

    def take_back(self) -> MessageContent | None:
        """Remove the last waiting question and return it; None if none waits."""
        if not self.queue:
            return None
        *others, last = self.queue
        self.queue = tuple(others)
        self._on_change(self)
        return last

    def take_back_all(self) -> MessageContent | None:
        """Remove all waiting questions and return them as one text; None if none waits."""
        if not self.queue:
            return None
        questions, self.queue = self.queue, ()
        self._on_change(self)
        return joined(*questions)

    @property
    def draft(self) -> MessageContent:
        """Everything in this chat that is not sent yet: waiting questions, then the text in the prompt."""
        return joined(*self.queue, self.unsent)

    # What is shown

    async def show_beside(self) -> bool:
        """Show two versions of the last answer side by side, or one again; return False if it has only one."""
        is_possible = self.conversation.compare_last()
        await self._draw(Changed())
        return is_possible

    async def keep_version(self, message_id: int) -> None:
        """End a comparison, and show the branch with this one of its answers. Raises StorageError."""
        self.conversation.compared_id = None
        self.conversation.show(message_id)
        await self.stored.show(self.conversation.leaf_id)
        self._measure()
        await self._draw(Changed())

    async def toggle_figures(self) -> bool:
        """Show the figures below each answer, or hide them; return whether they are shown."""
        self.conversation.shows_figures = not self.conversation.shows_figures
        await self._draw(Changed())
        return self.conversation.shows_figures

    # Branches. Each raises StorageError.

    async def undo_step(self) -> UndoneStep | None:
        """Take back the last step of the shown branch, with the files that it changed; its messages stay as another
        version (`app.chat.steps` says what a step is). Return None while an answer runs, and in an empty chat. Raises
        StorageError, having changed nothing, for a file that was changed since, and while another window answers in
        this chat."""
        return await self._change_step(self._steps.undo)

    async def redo_step(self) -> UndoneStep | None:
        """Do again what `undo_step` took back last, files included. Return None if nothing was, if the chat went on, or
        while an answer runs. Raises as `undo_step`."""
        return await self._change_step(self._steps.redo)

    async def _change_step(self, change: Callable[[], Awaitable[UndoneStep | None]]) -> UndoneStep | None:
        if self.is_answering:
            return None
        leaf_id = self.conversation.leaf_id
        try:
            # marked first, then looked: of two windows that begin at once, neither misses the other
            async with self.stored.answering(None if leaf_id == UNSAVED_ID else leaf_id):
                await self._take_over()
                if self.conversation.elsewhere:  # on any branch: its tools change the same files
                    raise WrittenElsewhereError
                return await change()
        finally:
            self._measure()
            await self._draw(Changed())

    async def step_to_version(self, message_id: int, n_steps: int) -> int | None:
        """Show the version `n_steps` to the right of a message; return its id, or None if there is none."""
        version_id = self.conversation.step_to_version(message_id, n_steps)
        if version_id is not None:
            await self.stored.show(self.conversation.leaf_id)
            self._measure()
        return version_id

    async def remove(self, message_id: int) -> RemovedMessages:
        """Remove a message with its descendants, also those of other windows. Raises WrittenElsewhereError while one
        goes on with them."""
        await self._take_over()  # what is not known here could not be restored
        removed = await remove(self, message_id)
        self._on_change(self)
        return removed

    async def restore(self, removed: RemovedMessages) -> None:
        self.conversation.restore(removed)
        await self.stored.restore(removed)
        self._measure()

    async def edit_summary(self, message_id: int, text: str) -> None:
        """Show a version of a summary with another text."""
        former = self.conversation.messages[message_id]
        stats = dict(former.stats)
        if isinstance(n_after := stats.get(TOKENS_AFTER), int):
            stats[TOKENS_AFTER] = max(0, n_after + estimated_tokens(text) - estimated_tokens(former.content))
        summary = MessageContent(role="summary", content=text, n_kept=former.n_kept, stats=stats)
        self.conversation.add(await self.stored.add_message(former.parent_id, summary))
        self._measure()
        await self._draw(Changed())

    def _measure(self) -> None:
        self.measure_branch()
        self._on_change(self)

    # From one answer to the next

    def _start(self, events: Events, message_id: int | None = None) -> None:
        """Run `events`, which go on after a message unless they add their own first."""
        if self._titling is not None:
            self._titling.cancel()  # a title can wait, the user cannot
        self._running = asyncio.create_task(self._run(events, message_id))
        self._running.add_done_callback(lambda _: self._on_change(self))
        self._on_change(self)

    async def _run(self, first: Events, message_id: int | None) -> None:
        """Draw what happens, and then generate the title."""
        has_ended = False
        try:
            async with self.stored.answering(message_id), aclosing(self._answer_all(first)) as events:
                async for event in events:
                    self._on_change(self)
                    await self._draw(event)
            has_ended = True
        finally:
            if not has_ended:  # stopped: no event says how it is left
                self._on_change(self)
                await self._draw(Changed())
        self._titling = asyncio.create_task(self._update_title())
        self._titling.add_done_callback(lambda _: self._on_change(self))

    async def _answer_all(self, first: Events) -> Events:
        """Answer, and then the waiting questions; after an answer that was stopped or failed they wait on."""
        self.may_compact = True
        following: Events | None = first
        while following is not None:
            async with aclosing(following) as events:
                async for event in events:
                    yield event
            following = None
            if self.queue and self.conversation.is_answered:
                question, *others = self.queue
                self.queue = tuple(others)
                self._on_change(self)
                if self.view is None:
                    with suppress(StorageError):  # saving the question reports it
                        await self.stored.save_draft(self.draft)
                following = self._ask_at_leaf(question)

    async def _ask_at_leaf(self, question: MessageContent) -> Events:
        """Wait for another window that answers here, and ask a question. It waits with the others meanwhile, so that
        it is not lost if this is stopped, and may be taken back."""
        if self.conversation.leaf_id == UNSAVED_ID:
            await remove(self, UNSAVED_ID)
        with suppress(StorageError):  # saving the question reports it
            await self._take_over()
        if self.conversation.is_answered_elsewhere:
            async with aclosing(self._waiting(question, self._until_others_end(question))) as events:
                async for event in events:
                    yield event
            if not self._take_from_queue(question):
                return
        async with aclosing(self._ask_with_room(question)) as events:
            async for event in events:
                yield event

    async def _ask_with_room(self, question: MessageContent) -> Events:
        """Make room for a question if it needs that, and ask it; it waits as in `_ask_at_leaf`."""
        leaf_id = self.conversation.leaf_id
        if self.connection.state.phase == "ready" and is_near(self, leaf_id, question):
            async with aclosing(self._waiting(question, make_room(self, leaf_id, question))) as events:
                async for event in events:
                    yield event
            if not self._take_from_queue(question):
                return
        parent_id = self.conversation.leaf_id
        with suppress(StorageError):  # saving the question reports it
            await self._take_over()
        is_branch = self.conversation.newest_below_leaf() is not None
        if is_branch:
            yield Note(_OTHER_WINDOW)
        async with aclosing(ask(self, question, parent_id)) as events:
            async for event in events:
                if is_branch and isinstance(event, Added) and event.message.role == "user":
                    self._branched_id = event.message.id
                yield event

    async def _waiting(self, question: MessageContent, events: Events) -> Events:
        """Let a question wait with the others during `events`."""
        self.queue = (question, *self.queue)
        self._on_change(self)
        async with aclosing(events):
            async for event in events:
                yield event

    async def _compact(self, focus: str) -> Events:
        with suppress(StorageError):  # saving the summary reports it
            await self._take_over()
        if self.conversation.is_answered_elsewhere:
            yield Note(ANSWERED_ELSEWHERE)
            return
        async with aclosing(make_room_now(self, focus)) as events:
            async for event in events:
                yield event

    def _take_from_queue(self, question: MessageContent) -> bool:
        """Take a question that waited; return False if the person took it back."""
        is_waiting = any(each is question for each in self.queue)
        self.queue = tuple(each for each in self.queue if each is not question)
        self._on_change(self)
        return is_waiting

    async def _until_others_end(self, question: MessageContent) -> Events:
        """Follow other windows that answer here until they end or die, or the question is taken back."""
        await self.stored.withdraw()  # two windows must not wait for each other
        yield Note(_WAITS_FOR_WINDOW)
        while self.conversation.is_answered_elsewhere and any(each is question for each in self.queue):
            await asyncio.sleep(_FOLLOWED_EVERY_S)
            with suppress(StorageError):  # saving the question reports it
                async with aclosing(self._follow()) as events:
                    async for event in events:
                        yield event

    async def _update_title(self) -> None:
        """Generate a title after the first answer if the model is idle; if that fails, the question stays the title."""
        from app.chat.titles import TITLE_REQUEST, TITLE_TOKENS, needs_title, parse_title  # not at the start

        branch = self.conversation.branch
        if self.stored.id is None or not needs_title(branch) or template_of(self.conversation.settings.options):
            return
        with suppress(UserError):  # the next question reports it
            client, model = await self.connection.client(), self.model
            messages = [*await self.turns(branch[-1].id), ChatMessage("user", TITLE_REQUEST)]
            status = (await client.status()).model(model)
            occupancy = status.occupancy if status is not None and status.id != GUIDE else None
            if occupancy is None or occupancy.n_running or occupancy.n_waiting:
                return
            # The same tools as for the answer keep the prompt the same, which is cached; a call is no title.
            options = GenerationOptions(temperature=0.0, max_tokens=TITLE_TOKENS, tools=tuple(self.offered))
            options = with_cache_key(options, self.stored.prompt_cache_key)
            async with aclosing(client.chat(messages, model=model, options=options)) as events:
                answer = "".join([event.text async for event in events if isinstance(event, AnswerDelta)])
            if title := parse_title(answer):
                await self.stored.set_title(branch[0].content, title)

    async def _draw(self, event: ChatEvent) -> None:
        if self.view is not None:
            await self.view(event)


def joined(*drafts: MessageContent) -> MessageContent:
    text = "\n\n".join(filter(None, (draft.content for draft in drafts)))
    return MessageContent(content=text, attachments=tuple(each for draft in drafts for each in draft.attachments))
