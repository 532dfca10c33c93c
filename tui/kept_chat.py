"""The chat on the screen as it is kept in chats.db: there again tomorrow, and after a kill.

Owns which stored messages each exchange on the screen is. How messages are kept belongs to `app.chat`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from app.chat.message import Message, State, Utterance
from app.chat.text import provisional_title
from app.terminal import printable
from tui.conversation import Conversation, Ending, Exchange

if TYPE_CHECKING:
    from app.chat.chat import Transcript
    from app.chat.recorder import AnswerRecorder
    from app.chat.store import ChatStore
    from app.chat.store_thread import StoreThread

__all__ = ["KeptChat", "exchange_of", "turns_of"]


@dataclass(frozen=True, slots=True)
class _Turn:
    """A question and the messages that it is: what it follows, itself (None: it could not be kept), and the last one of
    what came of it."""

    parent_id: int | None
    question: str
    question_id: int | None
    leaf_id: int | None


class KeptChat:
    """An async context manager; fulfils `tui.keeper.Keeper`. Leaving it waits until what was said is on the disk."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._opened: StoreThread | None = None
        self._chat_id: int | None = None
        self._turns: list[_Turn] = []
        self._taken_back: _Turn | None = None
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> KeptChat:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._one_at_a_time:
            if self._opened is not None:
                await self._opened.close()

    async def reopen(self, chat_id: int | None = None) -> Conversation:
        """Go on with a chat, without an id with that in which something was said last.

        Raises StorageError, and UnknownChatError for one that is not there.
        """
        transcript = await self._thread.do(partial(_read, chat_id))
        self.start_over()
        if transcript is None:
            return Conversation()
        turns = turns_of(transcript.branch)
        self._chat_id = transcript.chat.id
        self._turns = [_Turn(turn[0].parent_id, turn[0].content, turn[0].id, turn[-1].id) for turn in turns]
        return Conversation(transcript.chat.settings.system, [exchange_of(turn) for turn in turns])

    @asynccontextmanager
    async def exchange(self, question: str, model: str, system: str) -> AsyncIterator[AnswerRecorder]:
        """Keep a question, and its answer until the block is left. Raises StorageError."""
        from app.chat.recorder import AnswerRecorder

        async with self._one_at_a_time:
            turn = self._turn(question)
            try:
                self._chat_id = await self._thread.do(partial(_prepare, self._chat_id, question, model, system))
                if turn.question_id is None:
                    turn = await self._thread.do(partial(_ask, self._chat_id, turn))
                async with AnswerRecorder(self._thread, self._chat_id, turn.question_id, model) as recorder:
                    turn = replace(turn, leaf_id=recorder.message.id)
                    yield recorder
            finally:
                self._turns.append(turn)

    def take_back(self) -> None:
        """Go on before the last exchange, as another branch."""
        if self._turns:
            turn = self._turns.pop()
            self._taken_back = replace(turn, leaf_id=turn.question_id or turn.parent_id)

    def start_over(self) -> None:
        """Begin another chat with the next question."""
        self._chat_id, self._turns, self._taken_back = None, [], None

    @property
    def _thread(self) -> StoreThread:
        from app.chat.store_thread import StoreThread

        self._opened = self._opened or StoreThread(self._data_dir)
        return self._opened

    def _turn(self, question: str) -> _Turn:
        """The turn that was taken back, if this is its question: its answers become versions of one another."""
        turn, self._taken_back = self._taken_back, None
        if turn is not None and turn.question == question:
            return turn
        leaf_id = self._turns[-1].leaf_id if self._turns else None
        return _Turn(leaf_id, question, None, leaf_id)


def turns_of(branch: Iterable[Message]) -> list[list[Message]]:
    """Return the messages of a branch in groups: each question with all that came before the next one."""
    turns: list[list[Message]] = []
    for message in branch:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def exchange_of(turn: Sequence[Message]) -> Exchange:
    """Return a turn as the screen shows it; what was imported may begin with an answer."""
    question = turn[0].content if turn[0].role == "user" else ""
    answers = [message for message in turn if message.role != "user"]
    text = printable("\n\n".join(message.content for message in answers))
    return Exchange(question, text, _ending(answers[-1]) if answers else Ending.STOPPED)


def _ending(answer: Message) -> Ending:
    if answer.state is State.PARTIAL:
        return Ending.STOPPED
    return Ending.CUT if answer.stats.get("finish_reason") == "length" else Ending.COMPLETE


def _read(chat_id: int | None, store: ChatStore) -> Transcript | None:
    store.sweep()
    chat = store.chats.latest() if chat_id is None else store.chats.get(chat_id)
    return store.transcripts.read(chat.id) if chat else None


def _prepare(chat_id: int | None, question: str, model: str, system: str, store: ChatStore) -> int:
    """Return the chat's id, begun if there was none, with the model and the system prompt of this exchange."""
    if chat_id is None:
        chat_id = store.chats.create(title=provisional_title(question), model=model).id
    chat = store.chats.get(chat_id)
    if chat.settings.system != system:
        store.chats.configure(chat_id, replace(chat.settings, system=system))
    if chat.model != model:
        store.chats.use_model(chat_id, model)
    return chat_id


def _ask(chat_id: int, turn: _Turn, store: ChatStore) -> _Turn:
    kept = store.messages.add(chat_id, turn.parent_id, Utterance(role="user", content=turn.question))
    return replace(turn, question_id=kept.id, leaf_id=kept.id)
