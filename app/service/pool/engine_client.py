"""One model's engine, as the rest of the service asks it: answers, tokens, vectors, ranks.

Owns which caller each frame of the worker belongs to. Knows nothing of HTTP, of chat templates or of model names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from app.engine.protocol.messages import (
    Abort,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    EngineConfig,
    EngineMetrics,
    Finished,
    GetMetrics,
    Output,
    Rerank,
    Reranked,
    Submit,
    Tokenize,
    Tokenized,
    WorkerMessage,
)
from app.engine.request import FinishReason, Request
from app.service.pool.crash_limit import CrashLimit
from app.service.pool.engine_life import Admit, EngineLife, admit_at_once
from app.service.pool.pending_requests import AnswerEvent, PendingRequests, until_finished
from quantizer.errors import EngineError, UserError

__all__ = ["EngineClient"]

_OBSERVE_TIMEOUT_S = 1.0


class EngineClient(EngineLife):
    """An engine that answers. What was running when its worker died fails with an EngineError."""

    def __init__(
        self,
        model_path: Path,
        config: EngineConfig,
        command: Sequence[str],
        limit: CrashLimit | None = None,
        admit: Admit = admit_at_once,
    ) -> None:
        super().__init__(model_path, config, command, limit, admit)
        self._mail = PendingRequests()

    @property
    def n_running(self) -> int:
        """Number of answers under way."""
        return self._mail.n_answers

    @asynccontextmanager
    async def answer(self, *requests: Request) -> AsyncIterator[AsyncIterator[AnswerEvent]]:
        """Run `requests` and give their events as they come, a Finished last of each.

        Leaving early aborts them. Raises what made one of them fail.
        """
        async with self.in_use():
            events = self._mail.expect_answers(requests)
            for request in requests:
                self._worker.send(Submit(request))
            try:
                yield until_finished(events, len(requests))
            finally:
                for request in requests:
                    if self._mail.is_awaited(request.request_id):
                        self._mail.forget(request.request_id)
                        self._worker.send(Abort(request.request_id))

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        """Return the tokens of `text`; special tokens written in it count as such with `parse_special`."""
        tokenized: Tokenized = await self._call(Tokenize(uuid4().hex, text, add_special, parse_special))
        return tokenized.tokens

    async def pieces(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[tuple[int, bytes], ...]:
        """Return the tokens of `text` as `tokenize` does, each with its text."""
        frame = Tokenize(uuid4().hex, text, add_special, parse_special, with_pieces=True)
        tokenized: Tokenized = await self._call(frame)
        return tuple(zip(tokenized.tokens, tokenized.pieces, strict=True))

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, which must be ids of the vocabulary."""
        text: str = await self._call(Detokenize(uuid4().hex, tuple(tokens)))
        return text

    async def observe(self) -> EngineMetrics | None:
        """Return what the engine has done and holds; None when there is none just now. That is no use of it."""
        if self.status.state != "ready":
            return None
        try:
            async with asyncio.timeout(_OBSERVE_TIMEOUT_S):
                observed: EngineMetrics = await self._result(GetMetrics(uuid4().hex))
        except (EngineError, TimeoutError):  # it died meanwhile, or the system has stopped it
            return None
        return observed

    async def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> Embedded:
        """Return the vectors of `inputs`, texts or token ids. Raises RequestError for a model that only ranks."""
        embedded: Embedded = await self._call(Embed(uuid4().hex, tuple(inputs)))
        return embedded

    async def rank(self, query: str, documents: Sequence[str]) -> Reranked:
        """Return how well `documents` answer `query`. Raises RequestError for a model that cannot rank."""
        ranked: Reranked = await self._call(Rerank(uuid4().hex, query, tuple(documents)))
        return ranked

    async def _call(self, frame: Tokenize | Detokenize | Embed | Rerank) -> Any:
        async with self.in_use():
            return await self._result(frame)

    async def _result(self, frame: Tokenize | Detokenize | Embed | Rerank | GetMetrics) -> Any:
        result = self._mail.expect_result(frame.call_id)
        self._worker.send(frame)
        try:
            return await result
        finally:
            self._mail.forget(frame.call_id)
            if result.cancelled():
                self._worker.send(Abort(frame.call_id))

    def _take_mail(self, frame: WorkerMessage) -> None:
        match frame:
            case Output():
                self._mail.tell(frame.request_id, frame)
            case Finished():
                if frame.reason in (FinishReason.STOP, FinishReason.LENGTH):
                    self._limit.record_success()
                self._mail.tell(frame.request_id, frame)
            case Detokenized():
                self._mail.resolve(frame.call_id, frame.text)
            case Tokenized() | Embedded() | Reranked() | EngineMetrics():
                self._mail.resolve(frame.call_id, frame)
            case _:
                raise EngineError(f"The engine process sent a {type(frame).__name__} frame.", "Report this.")

    def _fail_mail(self, request_id: str, error: UserError) -> None:
        if request_id:
            self._mail.fail(request_id, error)
        else:
            self._mail.fail_all(error)
