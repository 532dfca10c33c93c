"""An answer as the screen wants it: safe text, in portions that a terminal can keep up with.

Owns the pace and the cleaning of streamed text. Knows nothing of widgets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from app.terminal import printable
from tui.connection import Connection
from tui.conversation import Role

if TYPE_CHECKING:
    from app.client import Completed, TextDelta

__all__ = ["PACE_S", "Portion", "reply"]

# Drawing each delta alone costs twice the CPU of drawing what 50 ms bring.
PACE_S = 0.05
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Portion:
    """Text and thoughts fit for a terminal, and how many tokens the answer has with them: `n_thought_tokens` of them up
    to the last thought, None where the portion has none."""

    text: str
    n_tokens: int
    reasoning: str = ""
    n_thought_tokens: int | None = None


async def reply(
    connection: Connection, turns: Sequence[tuple[Role, str]], sampler: Mapping[str, Any] = _NO_OPTIONS
) -> AsyncGenerator[Portion | Completed, None]:
    """Yield the answer to `turns` portion by portion and, last, what it cost. Waits for the model to be ready.
    `sampler` has options by their names, see `app.chat.sampler`.

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


def _parts(events: Sequence[TextDelta | Completed | None]) -> list[Portion | Completed]:
    from app.client import Completed, TextDelta

    deltas = [event for event in events if isinstance(event, TextDelta)]
    completed = [event for event in events if isinstance(event, Completed)]
    if not deltas:
        return [*completed]
    text, reasoning = ("".join(parts) for parts in zip(*((d.text, d.reasoning) for d in deltas), strict=True))
    counts = [delta.n_tokens for delta in deltas if delta.reasoning]
    n_thought_tokens = counts[-1] if counts else None
    return [Portion(printable(text), deltas[-1].n_tokens, printable(reasoning), n_thought_tokens), *completed]
