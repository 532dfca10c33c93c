"""A model with its engine, as requests use it.

Owns what one model is made of, and that nothing nobody asked for is in a request's way. Knows nothing of other models.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from app.engine.frames import Embedded
from app.engine.request import Request
from app.library.model_ref import ModelRef
from app.service.anticipation import Anticipation
from app.service.keep_alive import KeepAlive
from app.service.mailbox import AnswerEvent
from app.service.model_file import ModelFile
from app.service.request_record import RequestRecord
from app.service.supervisor import Supervisor

__all__ = ["ServedModel"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model with its engine. `ref.id` is what clients call it, `adapters` the names of those it may run under.

    `record` counts what one request takes.
    """

    ref: ModelRef
    file: ModelFile
    engine: Supervisor
    anticipation: Anticipation
    keep_alive: KeepAlive
    adapters: tuple[str, ...] = ()
    record: RequestRecord = field(default_factory=RequestRecord, compare=False)

    def for_request(self, record: RequestRecord) -> ServedModel:
        """Return the same model, which counts what it does in `record`."""
        record.model_id, record.engine = self.ref.id, self.engine
        return replace(self, record=record)

    @property
    def advice(self) -> dict[str, Any]:
        """The field that an answer has more where the planner has something to say of the model."""
        return {"warnings": warnings} if (warnings := self.engine.status.warnings) else {}

    @asynccontextmanager
    async def answer(self, *requests: Request) -> AsyncIterator[AsyncIterator[AnswerEvent]]:
        """Run `requests` before anything that nobody has asked for; see `Supervisor.answer`."""
        self.give_way()
        async with self.engine.answer(*requests) as events:
            yield events

    async def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> Embedded:
        """Return the vectors of `inputs`; see `Supervisor.embed`."""
        embedded = await self.engine.embed(inputs)
        self.record.add(embedded.n_tokens)
        return embedded

    async def n_tokens(self, prompt: str | tuple[int, ...], *, add_special: bool) -> int:
        """Return how many tokens `prompt` has for this model."""
        if isinstance(prompt, tuple):
            return len(prompt)
        return len(await self.engine.tokenize(prompt, add_special=add_special, parse_special=True))

    def give_way(self) -> None:
        """End what nobody has asked for."""
        self.anticipation.give_way()
