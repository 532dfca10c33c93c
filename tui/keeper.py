"""The seam behind which a chat is kept, and the keeper that keeps nothing.

Owns what a session needs of a store. `tui.kept_chat` is the one with a disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from tui.conversation import Conversation

if TYPE_CHECKING:
    from app.chat.message import Scalar, State

__all__ = ["Keeper", "Recording", "Unkept"]


class Recording(Protocol):
    """An answer that is being kept; see `app.chat.recorder.AnswerRecorder`."""

    def write(self, content: str) -> None: ...

    def finish(self, state: State, stats: Mapping[str, Scalar]) -> None: ...


class Keeper(Protocol):
    """Keeps one chat at a time. What waits for a disk raises StorageError."""

    async def reopen(self, chat_id: int | None = None) -> Conversation:
        """Go on with a chat; without an id with that in which something was said last, an empty one where there is
        none."""

    def exchange(self, question: str, model: str, system: str) -> AbstractAsyncContextManager[Recording]:
        """Keep a question, and its answer until the block is left."""

    def take_back(self) -> None:
        """Go on before the last exchange, as another branch; the same question again gets another answer."""

    def start_over(self) -> None:
        """Begin another chat with the next question."""


class Unkept:
    """Keeps nothing: for a chat that nobody should find later."""

    async def reopen(self, chat_id: int | None = None) -> Conversation:  # noqa: ARG002
        return Conversation()

    @asynccontextmanager
    async def exchange(self, question: str, model: str, system: str) -> AsyncIterator[Recording]:  # noqa: ARG002
        yield self

    def write(self, content: str) -> None: ...

    def finish(self, state: State, stats: Mapping[str, Scalar]) -> None: ...

    def take_back(self) -> None: ...

    def start_over(self) -> None: ...
