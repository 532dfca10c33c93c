"""The seam behind which a chat is kept, and the keeper that keeps nothing.

Owns what a session needs of a store. `tui.kept_chat` is the one with a disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields
from itertools import count
from typing import Protocol

from app.chat.chat import ChatSettings
from app.chat.message import Draft, Message, Scalar, State, Utterance
from tui.conversation import UNKEPT_ID, Conversation, Removed

__all__ = ["AnswerPlace", "Keeper", "Recording", "Unkept"]


@dataclass(frozen=True, slots=True)
class AnswerPlace:
    """Which message is answered by which model; `continued` is the answer that is written on, None for a new one."""

    parent_id: int | None
    model: str
    continued: Message | None = None


class Recording(Protocol):
    """An answer that is being kept; see `app.chat.recorder.AnswerRecorder`."""

    message: Message

    def write(self, content: str, reasoning: str = "") -> None: ...

    def finish(self, state: State, stats: Mapping[str, Scalar]) -> None: ...


class Keeper(Protocol):
    """Keeps one chat at a time. What waits for a disk raises StorageError."""

    async def reopen(self, chat_id: int | None = None) -> Conversation:
        """Go on with a chat; without an id with that in which something was said last, an empty one where there is
        none."""

    async def prepare(self, question: str, model: str, settings: ChatSettings) -> None:
        """Begin the chat, if it has not begun, and keep who answers in it, and how."""

    async def say(self, parent_id: int | None, said: Utterance) -> Message:
        """Keep a question after the message `parent_id`, in the chat that was prepared."""

    def answering(self, place: AnswerPlace) -> AbstractAsyncContextManager[Recording]:
        """Keep an answer until the block is left."""

    async def show(self, leaf_id: int | None) -> None:
        """Remember which branch is shown."""

    async def remove(self, message_id: int, leaf_id: int | None) -> None:
        """Forget a message and what follows, and show the branch that ends with `leaf_id`."""

    async def put_back(self, removed: Removed) -> None:
        """Undo a removal."""

    def entitler(self, question: str) -> Callable[[str], Awaitable[None]]:
        """Return what gives the present chat a title, if it is still called after `question` then."""

    def start_over(self) -> None:
        """Begin another chat with the next question."""

    async def draft(self) -> Draft:
        """Return what was typed in this chat and not sent."""

    async def keep_draft(self, draft: Draft) -> None:
        """Keep what is typed in this chat, in place of what was."""

    async def asked(self) -> Sequence[str]:
        """Return what was asked lately in any chat, the latest last."""


class Unkept:
    """Keeps nothing: for a chat that nobody should find later."""

    def __init__(self) -> None:
        self._ids = count(UNKEPT_ID + 1)

    async def reopen(self, chat_id: int | None = None) -> Conversation:  # noqa: ARG002
        return Conversation()

    async def prepare(self, question: str, model: str, settings: ChatSettings) -> None: ...

    async def say(self, parent_id: int | None, said: Utterance) -> Message:
        known = {field.name: getattr(said, field.name) for field in fields(Utterance)}
        return Message(id=next(self._ids), parent_id=parent_id, **known)

    @asynccontextmanager
    async def answering(self, place: AnswerPlace) -> AsyncIterator[Recording]:
        said = Utterance(role="assistant", content="", model=place.model, state=State.PARTIAL)
        yield _Unrecorded(place.continued or await self.say(place.parent_id, said))

    async def show(self, leaf_id: int | None) -> None: ...

    async def remove(self, message_id: int, leaf_id: int | None) -> None: ...

    async def put_back(self, removed: Removed) -> None: ...

    def entitler(self, question: str) -> Callable[[str], Awaitable[None]]:  # noqa: ARG002
        return _forget_title

    def start_over(self) -> None: ...

    async def draft(self) -> Draft:
        return Draft()

    async def keep_draft(self, draft: Draft) -> None: ...

    async def asked(self) -> Sequence[str]:
        return ()


async def _forget_title(title: str) -> None: ...


@dataclass(slots=True)
class _Unrecorded:
    message: Message

    def write(self, content: str, reasoning: str = "") -> None: ...

    def finish(self, state: State, stats: Mapping[str, Scalar]) -> None: ...
