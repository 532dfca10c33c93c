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

if TYPE_CHECKING:
    from app.client import Completed

__all__ = ["RunningAnswer"]


class RunningAnswer:
    """Writes on the answer that `recording` keeps, and measures it with `meter`."""

    def __init__(self, recording: Recording, meter: Meter) -> None:
        self.meter = meter
        self._recording = recording
        self._text = [recording.message.content]
        self._state = State.PARTIAL
        self._stats: Mapping[str, Scalar] = {}

    @property
    def message(self) -> Message:
        """The answer so far."""
        return replace(self._recording.message, content="".join(self._text), state=self._state, stats=self._stats)

    async def follow(
        self, connection: Connection, turns: Sequence[tuple[Role, str]], shown: Callable[[Portion], Awaitable[None]]
    ) -> Completed:
        """Write the answer to `turns`; return what it cost. Cancelling it stops the answer. Raises the UserError that
        ended it."""
        async with aclosing(reply(connection, turns)) as parts:
            async for part in parts:
                if not isinstance(part, Portion):
                    self._finish(part)
                    return part
                self._text.append(part.text)
                self._recording.write(part.text)
                self.meter.count(part.n_tokens)
                await shown(part)
        raise AssertionError("a reply ends with its cost or with an error")

    def _finish(self, cost: Completed) -> None:
        self._state, self._stats = State.FINISHED, asdict(cost)
        self._recording.finish(self._state, self._stats)
