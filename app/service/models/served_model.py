"""A model by one of its names with the engine that it answers by, as requests use it.

Owns what one model is made of, that its engine counts as used under its name, and that nothing nobody asked for is in a
request's way. Knows nothing of other models, which may have the same engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from app.engine.protocol.messages import Embedded, EngineConfig, Ready, Reranked, UnfitPolicy
from app.engine.request import Request
from app.library.local.model_files import ModelRef
from app.service.http.request_record import RequestRecord
from app.service.models.model_file import ModelFile
from app.service.pool.engine_client import EngineClient
from app.service.pool.engine_status import EngineStatus
from app.service.pool.keep_alive import KeepAlive
from app.service.pool.pending_requests import AnswerEvent
from app.service.pool.runner import Runner

__all__ = ["ServedModel"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model with its engine. `ref.id` is what clients call it, `adapters` the names of those it may run under.

    `keep_alive` is this name's hold on what `runner` runs. `record` counts what one request takes.
    """

    ref: ModelRef
    file: ModelFile
    runner: Runner
    keep_alive: KeepAlive
    adapters: tuple[str, ...] = ()
    record: RequestRecord = field(default_factory=RequestRecord, compare=False)

    def for_request(self, record: RequestRecord) -> ServedModel:
        """Return the same model, which counts what it does in `record`."""
        record.model_id, record.engine = self.ref.id, self.engine
        return replace(self, record=record)

    @property
    def engine(self) -> EngineClient:
        """The engine, which may answer under other names too. Use it under this one: `in_use`."""
        return self.runner.engine

    @property
    def status(self) -> EngineStatus:
        """How far the engine is for this name: as good as unloaded where only others hold it."""
        return self.engine.status if self.keep_alive.is_holding else EngineStatus(state="unloaded")

    @property
    def is_loaded(self) -> bool:
        """Whether this name has the engine loaded, or has it load."""
        return self.status.state in ("loading", "ready")

    @property
    def is_busy(self) -> bool:
        """Whether this name loads the engine, answers or is asked something."""
        return self.keep_alive.is_used or self.status.state == "loading"

    @property
    def advice(self) -> dict[str, Any]:
        """The field that an answer has more where the planner has something to say of the model."""
        return {"warnings": warnings} if (warnings := self.engine.status.warnings) else {}

    @contextmanager
    def in_use(self) -> Iterator[EngineClient]:
        """Give the engine, which this name holds for as long as this lasts and the idle time after it."""
        with self.keep_alive.in_use():
            yield self.engine

    def begin(self, when_unfit: UnfitPolicy | None = None) -> None:
        """Load it though nobody asks it for anything: a person wants it, so no clock lets it go."""
        self.keep_alive.keep(None)
        self.keep_alive.hold()
        self.engine.start(when_unfit)

    def reload(self, change: Callable[[EngineConfig], EngineConfig]) -> None:
        """Begin to load it under a changed config, in place of how it is loaded; what is under way fails."""
        self.keep_alive.hold()
        self.engine.reload(change)

    async def ready(self) -> Ready:
        """Wait for the model; see `EngineLife.ready`."""
        with self.in_use() as engine:
            return await engine.ready()

    @asynccontextmanager
    async def answer(self, *requests: Request) -> AsyncIterator[AsyncIterator[AnswerEvent]]:
        """Run `requests` before anything that nobody has asked for; see `EngineClient.answer`."""
        self.runner.cancel_background()
        with self.in_use() as engine:
            async with engine.answer(*requests) as events:
                yield events

    async def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> Embedded:
        """Return the vectors of `inputs`; see `EngineClient.embed`."""
        with self.in_use() as engine:
            embedded = await engine.embed(inputs)
        self.record.add(embedded.n_tokens)
        return embedded

    async def rank(self, query: str, documents: Sequence[str]) -> Reranked:
        """Return how well `documents` answer `query`; see `EngineClient.rank`."""
        with self.in_use() as engine:
            return await engine.rank(query, documents)

    async def n_tokens(self, prompt: str | tuple[int, ...], *, add_special: bool) -> int:
        """Return how many tokens `prompt` has for this model."""
        if isinstance(prompt, tuple):
            return len(prompt)
        with self.in_use() as engine:
            return len(await engine.tokenize(prompt, add_special=add_special, parse_special=True))
