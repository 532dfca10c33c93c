"""One chat with one model: what was said, the answer that is running, and its figures.

Owns the course of an answer from question to ending. Knows widgets only as an `AnswerView`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from app.chat.message import State
from quantizer.errors import UserError
from tui.connection import Connection
from tui.conversation import Conversation, Ending, Exchange
from tui.keeper import Keeper, Recording
from tui.meter import Clock, Meter
from tui.reply import Portion, reply
from tui.status import Status, status_of

if TYPE_CHECKING:
    from app.client import Completed

__all__ = ["AnswerView", "ChatSession"]


class AnswerView(Protocol):
    """Where an answer is shown."""

    async def write(self, text: str) -> None: ...

    async def finish(self, ending: Ending, error: UserError | None) -> None: ...


class ChatSession:
    """Answers one question at a time. `on_change` is called when `status` has something new to say."""

    def __init__(self, connection: Connection, keeper: Keeper, clock: Clock, on_change: Callable[[], None]) -> None:
        self.conversation = Conversation()
        self._connection = connection
        self._keeper = keeper
        self._clock = clock
        self._on_change = on_change
        self._meter: Meter | None = None
        self._cost: Completed | None = None

    @property
    def status(self) -> Status:
        """What the status line should say now."""
        return status_of(self._connection.state, self._meter, self._cost)

    async def reopen(self, chat_id: int | None = None) -> None:
        """Go on with a chat that is kept, without an id the last one. Raises StorageError, UnknownChatError."""
        self.conversation = await self._keeper.reopen(chat_id)
        self._cost = None
        self._on_change()

    def take_back(self) -> str | None:
        """Forget the last exchange and return its question, to be asked again; what is kept stays a branch."""
        self._keeper.take_back()
        return self.conversation.take_back()

    def start_over(self) -> None:
        """Begin an empty chat."""
        self._keeper.start_over()
        self.conversation = Conversation()
        self._cost = None
        self._on_change()

    async def answer(self, question: str, view: AnswerView) -> None:
        """Answer `question` into `view`. Cancelling it stops the answer and keeps what came of it.

        A question that cannot be kept is not asked.
        """
        self._meter = Meter(self._clock)
        self._on_change()
        text: list[str] = []
        ending, failure = Ending.STOPPED, None
        try:
            model, system = self._connection.state.model, self.conversation.system
            async with self._keeper.exchange(question, model, system) as recording:
                ending = await self._stream(question, view, recording, text, self._meter)
        except UserError as error:
            ending, failure = Ending.FAILED, error
            await self._connection.lose(error)
        finally:
            self._meter = None
            self.conversation.exchanges.append(Exchange(question, "".join(text), ending))
            self._on_change()
            await view.finish(ending, failure)

    async def _stream(
        self, question: str, view: AnswerView, recording: Recording, text: list[str], meter: Meter
    ) -> Ending:
        async with aclosing(reply(self._connection, self.conversation.turns(question))) as parts:
            async for part in parts:
                if not isinstance(part, Portion):
                    self._cost = part
                    recording.finish(State.FINISHED, asdict(part))
                    return Ending.CUT if part.finish_reason == "length" else Ending.COMPLETE
                text.append(part.text)
                recording.write(part.text)
                meter.count(part.n_tokens)
                self._on_change()
                await view.write(part.text)
        raise AssertionError("a reply ends with its cost or with an error")
