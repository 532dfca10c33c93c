"""A stopwatch on one answer, for figures while it runs; the engine's own replace them at its end.

Pure but for the clock it is given.

An answer as the screen wants it: safe text, in portions that a terminal can keep up with.

Owns the pace and the cleaning of streamed text. Knows nothing of widgets.

What a model thought aloud before its answer, in figures and words.

Owns the names under which the figures are kept with a message. Pure but for the clock it is given.

An answer on its way from the service into what is kept.

Owns its text, its figures and how it ended. Who shows it is told of each portion.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from app.chat.conversation import Message, MessageContent, MessageState, Scalar
from app.terminal import printable
from tui.chat.conversation import Role
from tui.chat.repository import AnswerWriter
from tui.connection.connection import ServiceConnection

__all__ = [
    "PACE_S",
    "AnswerTimer",
    "Clock",
    "ReasoningTimer",
    "RunningAnswer",
    "StreamChunk",
    "format_reasoning",
    "reply",
]

Clock = Callable[[], float]

# A rate over less than this says nothing.
_SHORTEST_SPAN_S = 0.2


class AnswerTimer:
    """Follows one answer from the moment it is made. Times are in seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_s = clock()
        self._first_s: float | None = None
        self._n_at_first = 0
        self._n_tokens = 0

    def count(self, n_tokens: int) -> None:
        """Take note that the answer has `n_tokens` now."""
        self._n_tokens = n_tokens
        if self._first_s is None:
            self._first_s, self._n_at_first = self._clock(), n_tokens

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self._first_s is None else self._first_s - self._started_s

    @property
    def tokens_per_s(self) -> float | None:
        """The rate since the first portion; None until it means something."""
        span_s = 0.0 if self._first_s is None else self._clock() - self._first_s
        return (self._n_tokens - self._n_at_first) / span_s if span_s >= _SHORTEST_SPAN_S else None


if TYPE_CHECKING:
    from app.client import Completed, TextDelta


# Drawing each delta alone costs twice the CPU of drawing what 50 ms bring.
PACE_S = 0.05
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """Text and thoughts fit for a terminal, and how many tokens the answer has with them: `n_thought_tokens` of them up
    to the last thought, None where the portion has none."""

    text: str
    n_tokens: int
    reasoning: str = ""
    n_thought_tokens: int | None = None


async def reply(
    connection: ServiceConnection, turns: Sequence[tuple[Role, str]], sampler: Mapping[str, Any] = _NO_OPTIONS
) -> AsyncGenerator[StreamChunk | Completed, None]:
    """Yield the answer to `turns` portion by portion and, last, what it cost. Waits for the model to be ready.
    `sampler` has options by their names, see `app.chat.sampling_options`.

    An answer that is the last of the turns is written on. Closing the generator stops the answer. Raises the UserError
    that ended it; text that came before is yielded first.
    """
    client = await connection.client()
    from app.client import GenerationOptions, Message

    messages = [Message(role, content) for role, content in turns]
    options = GenerationOptions(continue_final_message=True if turns[-1][0] == "assistant" else None, **sampler)
    stream = client.chat(messages, model=connection.state.model, options=options)
    inbox: asyncio.Queue[TextDelta | Completed | None] = asyncio.Queue()
    reader = asyncio.create_task(_read(stream, inbox))
    try:
        is_open = True
        while is_open:
            events = [await inbox.get()]
            while not inbox.empty():
                events.append(inbox.get_nowait())
            is_open = events[-1] is not None
            for part in _parts(events):
                yield part
            if is_open:
                await asyncio.sleep(PACE_S)
        await reader
    finally:
        # Cancelled inside the stream's own await, so that the connection is closed and the engine stops.
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _read(
    stream: AsyncIterator[TextDelta | Completed], inbox: asyncio.Queue[TextDelta | Completed | None]
) -> None:
    try:
        async for event in stream:
            inbox.put_nowait(event)
    finally:
        inbox.put_nowait(None)


def _parts(events: Sequence[TextDelta | Completed | None]) -> list[StreamChunk | Completed]:
    from app.client import Completed, TextDelta

    deltas = [event for event in events if isinstance(event, TextDelta)]
    completed = [event for event in events if isinstance(event, Completed)]
    if not deltas:
        return [*completed]
    text, reasoning = ("".join(parts) for parts in zip(*((d.text, d.reasoning) for d in deltas), strict=True))
    counts = [delta.n_tokens for delta in deltas if delta.reasoning]
    n_thought_tokens = counts[-1] if counts else None
    return [StreamChunk(printable(text), deltas[-1].n_tokens, printable(reasoning), n_thought_tokens), *completed]


_SPAN_S, _N_TOKENS = "thought_s", "n_thought_tokens"


class ReasoningTimer:
    """Times the thoughts of one answer from the first to the last; `stats` are the figures so far, none without a
    thought. `former` are those of an answer that is written on."""

    def __init__(self, clock: Clock, former: Mapping[str, Scalar]) -> None:
        self.stats: Mapping[str, Scalar] = {name: former[name] for name in (_SPAN_S, _N_TOKENS) if name in former}
        self._clock = clock
        self._first_s: float | None = None

    def follow(self, portion: StreamChunk) -> None:
        """Take note of what has come."""
        if portion.n_thought_tokens is None:
            return
        now_s = self._clock()
        self._first_s = now_s if self._first_s is None else self._first_s
        self.stats = {_SPAN_S: now_s - self._first_s, _N_TOKENS: portion.n_thought_tokens}


def format_reasoning(message: MessageContent, *, is_running: bool) -> str:
    """Return what is said of the thoughts of a message, as far as it is known."""
    span_s, n_tokens = message.stats.get(_SPAN_S), message.stats.get(_N_TOKENS)
    verb = "thinking" if is_running and not message.content else "thought"
    span = f" for {span_s:.1f} s" if isinstance(span_s, float) else ""
    return f"{verb}{span}" + (f", {n_tokens} token{'s' if n_tokens != 1 else ''}" if n_tokens is not None else "")


if TYPE_CHECKING:
    from app.client import Completed


class RunningAnswer:
    """Writes on the answer that `recording` keeps; measures it with `meter`, and its thoughts with `thought`."""

    def __init__(self, recording: AnswerWriter, meter: AnswerTimer, thought: ReasoningTimer) -> None:
        self.meter = meter
        self._recording = recording
        self._text = [recording.message.content]
        self._reasoning = [recording.message.reasoning]
        self._thought = thought
        self._state = MessageState.PARTIAL
        self._cost: Mapping[str, Scalar] = {}

    @property
    def message(self) -> Message:
        """The answer so far."""
        content, reasoning = "".join(self._text), "".join(self._reasoning)
        message = self._recording.message
        return replace(message, content=content, reasoning=reasoning, state=self._state, stats=self.stats)

    @property
    def stats(self) -> Mapping[str, Scalar]:
        """The figures so far: what was thought and, at the end, what it cost."""
        return {**self._thought.stats, **self._cost}

    async def follow(
        self,
        connection: ServiceConnection,
        turns: Sequence[tuple[Role, str]],
        sampler: Mapping[str, int | float],
        shown: Callable[[StreamChunk], Awaitable[None]],
    ) -> Completed:
        """Write the answer to `turns`; return what it cost. Cancelling it stops the answer. Raises the UserError that
        ended it."""
        try:
            async with aclosing(reply(connection, turns, sampler)) as parts:
                async for part in parts:
                    if not isinstance(part, StreamChunk):
                        self._state, self._cost = MessageState.FINISHED, asdict(part)
                        return part
                    self._take(part)
                    await shown(part)
        finally:
            self._recording.finish(self._state, self.stats)
        raise AssertionError("a reply ends with its cost or with an error")

    def _take(self, portion: StreamChunk) -> None:
        self._text.append(portion.text)
        self._reasoning.append(portion.reasoning)
        self._recording.write(portion.text, portion.reasoning)
        self.meter.count(portion.n_tokens)
        self._thought.follow(portion)
