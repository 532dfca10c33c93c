"""Room in the context of the open chat: when its older messages become a summary, and what is said about that.

Owns the decision: before a request, after one that did not fit, and by command; and that after a failure the chat is
sent as it is. Writing the summary is `tui.chat.answer.compactor`'s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from app.chat.compaction import TOKENS_AFTER, TOKENS_BEFORE
from app.chat.conversation import Message, MessageContent
from app.protocol.errors import ContextOverflowError
from quantizer.system.errors import UserError
from tui.chat.answer.compactor import Compactor
from tui.chat.answer.runner import AnswerRunner
from tui.chat.conversation import Conversation, RemovedMessages, TranscriptEntry
from tui.chat.repository import AnswerTarget, StoredChat

_NOTHING_TO_COMPACT = "There is nothing to compact: the older messages are few and short."


class NoteDisplay(Protocol):
    """Where a line about the chat is shown; see `tui.chat.open_chat.ChatView`."""

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
