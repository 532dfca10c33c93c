"""The steps of a chat, taken back one by one: with the files that the calls in it changed.

A step is an answer that called tools, with the results and with what was said after them; where the last question has
no such answer, the question with its answer; and a summary. Owns which messages and changes are a step's. The messages
of a step that is taken back stay as another version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.chat.branches import UNSAVED_ID, Conversation
from app.chat.conversation import Message
from app.chat.repository import StoredChat
from app.chat.turns import made_calls
from app.common.terminal import quoted_name
from app.tools.backend import ToolBackend
from app.tools.display import call_title
from app.tools.tool import FileChange
from quantizer.system.errors import StorageError


@dataclass(frozen=True, slots=True)
class UndoneStep:
    """The messages of a step, from its first to the end of the branch, and what taking it back `restored` on the
    disk."""

    messages: tuple[Message, ...]
    restored: tuple[FileChange, ...] = ()

    @property
    def question(self) -> Message | None:
        """The question that was taken back with its answer, None for a step of an answer."""
        return self.messages[0] if self.messages[0].role == "user" else None


def last_step(branch: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages of the last step, none of an empty branch."""
    start = 0
    for index, message in enumerate(branch):
        follows_summary = index > 0 and branch[index - 1].role == "summary"
        if message.role in ("user", "summary") or made_calls(message) or follows_summary:
            start = index
    return tuple(branch[start:])


class StepHistory:
    """Takes steps of the shown branch back, and does again what it took back. Methods raise StorageError for a file
    that was changed since, having changed nothing."""

    def __init__(self, stored: StoredChat, conversation: Conversation, tools: ToolBackend | None) -> None:
        self._stored = stored
        self._conversation = conversation
        self._tools = tools
        self._undone: list[UndoneStep] = []

    async def undo(self) -> UndoneStep | None:
        """Restore the files that the last step changed, and end the branch before it. Return None in an empty chat."""
        messages = last_step(self._conversation.branch)
        if not messages:
            return None
        changed = [message for message in messages if _changes(message)]
        restored = await self._take_back([change for message in changed for change in _changes(message)])
        await self._mark(changed, is_undone=True)
        if messages[0].id == UNSAVED_ID:
            self._conversation.remove(UNSAVED_ID)
        else:
            await self._end_with(messages[0].parent_id)
        step = UndoneStep(messages, restored)
        self._undone.append(step)
        return step

    async def redo(self) -> UndoneStep | None:
        """Do again what `undo` took back last, also to files. Return None if nothing was, or the branch is another."""
        if not self._undone or self._undone[-1].messages[0].parent_id != self._conversation.leaf_id:
            return None
        step = self._undone[-1]
        if any(message.id not in self._conversation.messages for message in step.messages):
            return None
        await self._take_back(step.restored)
        self._undone.pop()
        await self._mark([message for message in step.messages if _changes(message)], is_undone=False)
        await self._end_with(step.messages[-1].id)
        return step

    async def _take_back(self, changes: Sequence[FileChange]) -> tuple[FileChange, ...]:
        if not changes:
            return ()
        if self._tools is None:
            raise StorageError("Files cannot be restored here: this chat has no tools.", "Open it in the app.")
        return await self._tools.undo(changes)

    async def _mark(self, messages: Sequence[Message], *, is_undone: bool) -> None:
        for message in messages:
            assert message.result is not None, "it has changes"
            result = replace(message.result, is_undone=is_undone)
            await self._stored.write_result(message.id, result)
            self._conversation.messages[message.id] = replace(message, result=result)

    async def _end_with(self, leaf_id: int | None) -> None:
        await self._stored.show(leaf_id)
        self._conversation.leaf_id = leaf_id


def _changes(message: Message) -> tuple[FileChange, ...]:
    """Return the changes of a call that are not undone."""
    result = message.result
    return () if result is None or result.is_undone else result.changes


def undone_text(step: UndoneStep) -> str:
    """Return what was taken back, and how to do it again."""
    titles = [call_title(message.result) for message in step.messages if message.result is not None]
    if titles:
        what = f"Took back: {', '.join(titles)}."
    elif step.messages[0].role == "summary":
        what = "Took the summary back."
    else:
        what = "Took the last question and its answer back."
    paths = dict.fromkeys(quoted_name(change.path) for change in step.restored)
    restored = [f"As before: {', '.join(paths)}."] if paths else []
    return " ".join((what, *restored, "/redo does it again."))
