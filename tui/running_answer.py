"""An answer on its way from the service into what is kept.

Owns its text, its figures and how it ended. Who shows it is told of each portion.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from app.chat.message import Message, Scalar, State
from tui.connection import Connection
from tui.conversation import Role
from tui.keeper import Recording
from tui.meter import Meter
from tui.reply import Portion, reply
from tui.thought import ThoughtWatch

if TYPE_CHECKING:
    from app.client import Completed

__all__ = ["RunningAnswer"]


class RunningAnswer:
    """Writes on the answer that `recording` keeps; measures it with `meter`, and its thoughts with `thought`."""

    def __init__(self, recording: Recording, meter: Meter, thought: ThoughtWatch) -> None:
        self.meter = meter
        self._recording = recording
        self._text = [recording.message.content]
        self._reasoning = [recording.message.reasoning]
        self._thought = thought
        self._state = State.PARTIAL
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
        connection: Connection,
        turns: Sequence[tuple[Role, str]],
        sampler: Mapping[str, int | float],
        shown: Callable[[Portion], Awaitable[None]],
    ) -> Completed:
        """Write the answer to `turns`; return what it cost. Cancelling it stops the answer. Raises the UserError that
        ended it."""
        try:
            async with aclosing(reply(connection, turns, sampler)) as parts:
                async for part in parts:
                    if not isinstance(part, Portion):
                        self._state, self._cost = State.FINISHED, asdict(part)
                        return part
                    self._take(part)
                    await shown(part)
        finally:
            self._recording.finish(self._state, self.stats)
        raise AssertionError("a reply ends with its cost or with an error")

    def _take(self, portion: Portion) -> None:
        self._text.append(portion.text)
        self._reasoning.append(portion.reasoning)
        self._recording.write(portion.text, portion.reasoning)
        self.meter.count(portion.n_tokens)
        self._thought.follow(portion)
