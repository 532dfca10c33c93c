"""Compacts the open chat: whether a request needs it, and the summary as the model writes it.

Owns the requests for a summary and the message that it becomes; where writing it fails or is stopped, the chat is as it
was. Which messages it replaces is planned in `app.chat.compaction`; `app.chat.summaries` decides when.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Protocol

from app.chat.answers import AnswerRunner
from app.chat.backend import ChatConnection
from app.chat.branches import Conversation, RemovedMessages, TranscriptEntry
from app.chat.compaction import (
    FILL_PERCENT,
    TOKENS_AFTER,
    TOKENS_BEFORE,
    CompactionPlan,
    ContextBudget,
    asking_branch,
    branch_tokens,
    checked_summary,
    plan_compaction,
    summary_request,
    with_files,
)
from app.chat.context_tokens import message_tokens
from app.chat.conversation import Message, MessageContent, MessageState, MessageTree, Scalar
from app.chat.prompt_templates import COMPLETION
from app.chat.repository import AnswerTarget, StoredChat
from app.chat.sampling_options import template_of, think_of
from app.chat.stream import StreamChunk, stream_answer
from app.protocol.chat import Completed
from app.protocol.errors import ContextOverflowError, RequestError
from quantizer.system.errors import UserError

if TYPE_CHECKING:
    from app.protocol.chat import Tool
    from app.settings.settings import Settings


_TEMPERATURE = 0.3  # facts, not fancy
_LEAST_CTX = 2048  # where an engine does not say how long its context is
_NEAR_PERCENT = 70  # of what may be filled: below it the service need not be asked
_KEPT_OPTIONS = ("template", "seed")  # the others are for answers
_WRITING_ID = 2**62  # of the message of a summary that is being written, after all that are stored
_TOO_LOW = 1.5  # by how much an estimate may turn out too low before the second try


@dataclass(frozen=True, slots=True)
class AutoCompaction:
    """Whether chats are compacted by themselves, and the percent of the context that they may fill before."""

    is_on: bool = True
    fill_percent: int = FILL_PERCENT

    @classmethod
    def of(cls, settings: Settings) -> AutoCompaction:
        """Return what the settings say."""
        return cls(settings.auto_compact, settings.compact_at)


class SummaryDisplay(Protocol):
    """Where a summary is shown as it is written; see `app.chat.session.ChatView`."""

    async def write(self, message: Message, chunk: StreamChunk) -> None: ...


class CompactedChat(Protocol):
    """What a compactor needs of the open chat."""

    stored: StoredChat
    conversation: Conversation

    @property
    def view(self) -> SummaryDisplay | None:
        """Its display while it is shown."""

    @property
    def answering_model(self) -> str:
        """The model that answers."""

    @property
    def model_beside_connection(self) -> str:
        """That model if it is not the connection's; else an empty string."""

    @property
    def offered(self) -> Sequence[Tool]:
        """The tools that the last request of the chat offered."""


class Compactor:
    """Writes the summaries of one chat. `policy` returns the settings in effect, `show` draws the messages,
    `on_change` is called when `is_writing` changes.

    `is_writing` while a summary is written.
    """

    def __init__(
        self,
        chat: CompactedChat,
        connection: ChatConnection,
        policy: Callable[[], AutoCompaction],
        show: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self.is_writing = False
        self._chat = chat
        self._connection = connection
        self._policy = policy
        self._show = show
        self._on_change = on_change

    def is_near(self, leaf_id: int | None, question: MessageContent | None = None) -> bool:
        """Return whether `is_due` is worth asking: it waits for the service."""
        policy, state = self._policy(), self._connection.state
        if leaf_id is None or not policy.is_on:
            return False
        is_known = state.n_ctx > 0 and not self._chat.model_beside_connection
        n_near = ContextBudget(n_ctx=state.n_ctx, fill_percent=policy.fill_percent).n_full * _NEAR_PERCENT // 100
        return not is_known or self._n_tokens(leaf_id, question) > n_near

    async def is_due(self, leaf_id: int | None, question: MessageContent | None = None) -> bool:
        """Return whether the request after a message, with a `question` that is not in the chat yet, would leave its
        answer too little room in a context that cannot grow. Raises UserError where the service cannot be asked."""
        n_ctx, can_grow = await self._context()
        n_full = ContextBudget(n_ctx=n_ctx, fill_percent=self._policy().fill_percent).n_full
        return bool(n_ctx) and not can_grow and self._n_tokens(leaf_id, question) > n_full

    @property
    def is_automatic(self) -> bool:
        """Whether chats are compacted by themselves."""
        return self._policy().is_on

    async def compact(
        self,
        leaf_id: int | None,
        focus: str = "",
        question: MessageContent | None = None,
        overflow: ContextOverflowError | None = None,
    ) -> Message | None:
        """Summarise the branch to a message in a message after it, and return that; None where it would gain nothing.

        `focus` is what to keep in mind above all. There must be room for `question` after it; `overflow` is the error
        of a request of this branch, which has the tokens that it takes. Raises UserError; then, and if cancelled, the
        chat is as it was.
        """
        if template_of(self._chat.conversation.settings.options) == COMPLETION:
            raise RequestError(
                "A chat that the model only continues cannot be summarised by it.", "/template names other templates."
            )
        budget = await self._budget(leaf_id, question, overflow)
        for factor in (budget.factor, budget.factor * _TOO_LOW):
            plan = self._plan(leaf_id, replace(budget, factor=factor))
            if plan is None:
                return None
            try:
                return await self._stored(leaf_id, plan, focus)
            except ContextOverflowError:  # the estimate was too low
                if factor != budget.factor:
                    raise
        return None

    def _plan(self, leaf_id: int | None, budget: ContextBudget) -> CompactionPlan | None:
        return plan_compaction(self._path(leaf_id), budget, self._chat.conversation.settings.system)

    def _n_tokens(self, leaf_id: int | None, question: MessageContent | None = None) -> int:
        conversation = self._chat.conversation
        return conversation.context_size(leaf_id).n_tokens + self._n_pending(leaf_id, question)

    def _n_pending(self, leaf_id: int | None, question: MessageContent | None) -> int:
        if question is None:
            return 0
        return message_tokens(self._path(leaf_id, question)).of_messages[-1]

    def _path(self, leaf_id: int | None, question: MessageContent | None = None) -> tuple[Message, ...]:
        path = MessageTree(self._chat.conversation.messages.values()).path(leaf_id)
        if question is None:
            return path
        asked = Message(
            id=0, parent_id=leaf_id, role="user", content=question.content, attachments=question.attachments
        )
        return (*path, asked)

    async def _context(self) -> tuple[int, bool]:
        """Return the tokens of the model's context, 0 if unknown, and whether it can grow."""
        beside = self._chat.model_beside_connection
        client = await (self._connection.service() if beside else self._connection.client())
        status = (await client.status()).model(self._chat.answering_model)
        return (status.n_ctx, status.can_grow) if status is not None else (0, False)

    async def _budget(
        self, leaf_id: int | None, question: MessageContent | None, overflow: ContextOverflowError | None
    ) -> ContextBudget:
        n_ctx = (await self._context())[0]
        n_branch = branch_tokens(self._path(leaf_id), self._chat.conversation.settings.system)
        if overflow is not None:
            n_ctx = overflow.n_ctx
        return ContextBudget(
            n_ctx=n_ctx or max(_LEAST_CTX, n_branch),
            fill_percent=self._policy().fill_percent,
            n_pending=self._n_pending(leaf_id, question),
            factor=1.0 if overflow is None else max(1.0, overflow.n_prompt_tokens / max(1, n_branch)),
        )

    async def _stored(self, leaf_id: int | None, plan: CompactionPlan, focus: str) -> Message:
        """Write the summary as a message after `leaf_id`, which is stored once it is whole: of one that was stopped,
        failed or killed nothing is left."""
        chat, conversation = self._chat, self._chat.conversation
        await chat.stored.prepare("", chat.answering_model, conversation.settings)
        n_before = conversation.context_size(leaf_id).n_tokens or plan.n_tokens_before
        conversation.begin(_begun(leaf_id, chat.answering_model, plan.n_kept))
        self.is_writing = True
        self._on_change()
        try:
            text, cost = await self._written(plan, focus)
            stats: dict[str, Scalar] = {
                **asdict(cost),
                TOKENS_BEFORE: n_before,
                TOKENS_AFTER: plan.n_tokens_left + cost.n_output_tokens,
            }
            summary = MessageContent(
                role="summary", content=text, model=chat.answering_model, n_kept=plan.n_kept, stats=stats
            )
            message = await self._added(leaf_id, summary)
            conversation.remove(_WRITING_ID)
            conversation.begin(message)
            await self._show()  # open, as it was while it was written
            conversation.end(message)
        finally:
            self.is_writing, conversation.part, conversation.running_id = False, (1, 1), None
            if _WRITING_ID in conversation.messages:
                conversation.remove(_WRITING_ID)
                conversation.leaf_id = leaf_id
            self._on_change()
            await self._show()
        return message

    async def _added(self, leaf_id: int | None, summary: MessageContent) -> Message:
        """Return the stored message of a summary; if this is cancelled none is stored."""
        stored = self._chat.stored
        adding = asyncio.ensure_future(stored.add_message(leaf_id, summary))
        try:
            return await asyncio.shield(adding)
        except asyncio.CancelledError:
            await stored.remove((await adding).id, leaf_id)
            raise

    async def _written(self, plan: CompactionPlan, focus: str) -> tuple[str, Completed]:
        """Return the text of the summary and the cost of its last part, which is shown as it comes."""
        text, cost = "", None
        for number, part in enumerate(plan.parts, start=1):
            self._chat.conversation.part = (number, len(plan.parts))
            await self._show()
            text, cost = await self._part(asking_branch(part, self._request(plan, focus), text), plan)
        assert cost is not None, "a plan has parts"
        return with_files(text, plan.replaced), cost

    def _request(self, plan: CompactionPlan, focus: str) -> str:
        return summary_request(plan.n_summary_tokens, focus, has_tools=bool(self._chat.offered))

    async def _part(self, path: Sequence[Message], plan: CompactionPlan) -> tuple[str, Completed]:
        """Return the summary of a branch that asks for it, and its cost; the text of the last part is shown."""
        messages, (number, n_parts) = self._chat.conversation.messages, self._chat.conversation.part
        text = ""
        async with aclosing(self._events(path, plan.n_summary_tokens)) as events:
            async for event in events:
                if isinstance(event, Completed):
                    return checked_summary(text, event.finish_reason, plan.n_summary_tokens), event
                text += event.text
                if number == n_parts and event.text:
                    messages[_WRITING_ID] = replace(messages[_WRITING_ID], content=text)
                    if self._chat.view is not None:
                        await self._chat.view.write(messages[_WRITING_ID], replace(event, reasoning=""))
        raise RequestError("The summary did not end.", "/compact tries again.")

    async def _events(self, path: Sequence[Message], n_tokens: int) -> AsyncGenerator[StreamChunk | Completed, None]:
        chat, conversation = self._chat, self._chat.conversation
        parts = await chat.stored.media_parts(conversation.media_files_of(path))
        options = conversation.settings.options
        asked: dict[str, Scalar] = {
            "temperature": _TEMPERATURE,
            "max_tokens": n_tokens,
            "think": think_of(options) or "off",
            **{name: options[name] for name in _KEPT_OPTIONS if name in options},
        }
        events = stream_answer(
            self._connection,
            conversation.turns_of(path, parts),
            asked,
            lambda: chat.model_beside_connection,
            prompt_cache_key=chat.stored.prompt_cache_key,
            tools=chat.offered,
        )
        async with aclosing(events):
            async for event in events:
                yield event


def _begun(leaf_id: int | None, model: str, n_kept: int) -> Message:
    return Message(
        id=_WRITING_ID,
        parent_id=leaf_id,
        role="summary",
        content="",
        model=model,
        state=MessageState.PARTIAL,
        n_kept=n_kept,
    )


_NOTHING_TO_COMPACT = "There is nothing to compact: the older messages are few and short."


class NoteDisplay(Protocol):
    """Where a line about the chat is shown; see `app.chat.session.ChatView`."""

    async def note(self, text: str) -> None: ...


class GrowingChat(Protocol):
    """What making room needs of the open chat."""

    stored: StoredChat
    conversation: Conversation

    @property
    def view(self) -> NoteDisplay | None:
        """Its display while it is shown."""

    async def remove(self, message_id: int) -> RemovedMessages:
        """Remove a message with its descendants. Raises StorageError."""


class ContextRoom:
    """Makes room in the context of one chat. `show` draws the messages. Methods raise StorageError.

    `may_compact` until a summary fails: the requests after that are sent as they are.
    """

    def __init__(
        self, chat: GrowingChat, compactor: Compactor, answers: AnswerRunner, show: Callable[[], Awaitable[None]]
    ) -> None:
        self.may_compact = True
        self._chat = chat
        self._compactor = compactor
        self._answers = answers
        self._show = show

    def is_near(self, leaf_id: int | None, question: MessageContent) -> bool:
        """Return whether a `question` after `leaf_id`, not stored yet, may need room."""
        return self._compactor.is_near(leaf_id, question)

    async def make(self, leaf_id: int | None, question: MessageContent | None = None) -> int | None:
        """Summarise older messages if the request after `leaf_id`, with a `question` that is not stored yet, would
        leave its answer too little room; return the message to go on after."""
        summary = await self._compacted(leaf_id, question, is_forced=False)
        return leaf_id if summary is None else summary.id

    async def for_answer(self, target: AnswerTarget) -> AnswerTarget:
        """Return the target after the summary that its request needs."""
        if target.continued is not None or target.is_other or target.parent_id is None:
            return target
        if not self.may_compact or not self._compactor.is_near(target.parent_id):
            return target
        return replace(target, parent_id=await self.make(target.parent_id))

    async def after_overflow(self, target: AnswerTarget, failed: Message) -> AnswerTarget | None:
        """If a request failed because the context is too small, return what to answer once older messages became a
        summary; None where that does not help, or is not wanted."""
        conversation = self._chat.conversation
        overflow = conversation.errors.get(failed.id)
        has_text = bool(failed.content or failed.reasoning)
        is_own = target.continued is None and not target.is_other
        if not isinstance(overflow, ContextOverflowError) or has_text or not is_own or not self.may_compact:
            return None
        if not self._compactor.is_automatic:
            return None
        summary = await self._compacted(target.parent_id, overflow=overflow)
        if summary is None:
            conversation.leaf_id = failed.id
            await self._chat.stored.show(failed.id)
            await self._show()
            return None
        await self._chat.remove(failed.id)
        conversation.errors.pop(failed.id, None)
        return replace(target, parent_id=summary.id)

    async def make_now(self, focus: str) -> None:
        """Summarise older messages because the person wants it; `focus` is what to keep in mind above all."""
        try:
            summary = await self._compactor.compact(self._chat.conversation.leaf_id, focus)
        except UserError as error:
            await self._note(str(error))
        else:
            await self._show_saving(summary)

    async def _compacted(
        self,
        leaf_id: int | None,
        question: MessageContent | None = None,
        overflow: ContextOverflowError | None = None,
        *,
        is_forced: bool = True,
    ) -> Message | None:
        """Return the summary that a request needs, None if it needs none or there is none: then it is sent as it is."""
        try:
            if not is_forced and not await self._compactor.is_due(leaf_id, question):
                return None
            summary = await self._compactor.compact(leaf_id, question=question, overflow=overflow)
        except UserError as error:
            self.may_compact = False
            await self._note(str(error))
            return None
        if summary is not None:
            await self._show_saving(summary)
        return summary

    async def _show_saving(self, summary: Message | None) -> None:
        if summary is not None:
            self._answers.measure_branch()
        last = self._chat.conversation.entries()[-1:]
        await self._note(_saving_text(last[0]) if summary is not None and last else _NOTHING_TO_COMPACT)

    async def _note(self, text: str) -> None:
        if self._chat.view is not None:
            await self._chat.view.note(text)


def _saving_text(entry: TranscriptEntry) -> str:
    """Return what a summary has saved: "Compacted 38 messages: 6,210 → 840 tokens"."""
    n_messages, stats = entry.n_summarised, entry.message.stats
    before, after = stats.get(TOKENS_BEFORE), stats.get(TOKENS_AFTER)
    saved = f": {before:,} → {after:,} tokens" if isinstance(before, int) and isinstance(after, int) else ""
    return f"Compacted {n_messages} message{'s' if n_messages != 1 else ''}{saved}"
