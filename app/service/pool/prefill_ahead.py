"""Prefills the certain begin of the next turn of a conversation while the user reads and writes.

A chat template adds more than the answer: what ends it, the answer without its reasoning, tokenized anew, and the head
of the next message. Owns that work and that it yields to requests. Independent of HTTP and of templates.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import takewhile
from typing import TypeAlias
from uuid import uuid4

from app.engine.request import Request, SamplingParams
from app.service.pool.engine_client import EngineClient
from quantizer.errors import UserError

__all__ = ["BACKGROUND_PRIORITY", "PrefillAhead", "PromptAfter"]

BACKGROUND_PRIORITY = -1  # of requests that only fill the cache
QUIET_S = 0.25  # after an answer: a program that continues by itself asks sooner
_ANY_TWO_WORDS = ("A", "B")  # every next message begins with the common prefix of two prompts

# Returns the text of the prompt after a next message of the user.
PromptAfter: TypeAlias = Callable[[str], Awaitable[str]]


class PrefillAhead:
    """Prefills for one engine, for the most recent conversation only."""

    def __init__(self, engine: EngineClient, quiet_s: float = QUIET_S) -> None:
        self._engine = engine
        self._quiet_s = quiet_s
        self._task: asyncio.Task[None] | None = None

    def begin(self, request: Request, prompt_after: PromptAfter) -> None:
        """Prefill soon what follows the answer to `request`, unless the engine runs other answers then."""
        self.cancel()
        self._task = asyncio.create_task(self._run(request, prompt_after))

    def cancel(self) -> None:
        """Leave the engine to requests at once; what was computed so far stays in its cache."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, request: Request, prompt_after: PromptAfter) -> None:
        await asyncio.sleep(self._quiet_s)
        with contextlib.suppress(UserError):  # the next request meets the same error
            prefix = _common_prefix(*[await prompt_after(word) for word in _ANY_TWO_WORDS])
            if not prefix or not self._engine.is_available or self._engine.n_running:
                return
            async with self._engine.answer(_prefill_request(request, prefix)) as events:
                async for _ in events:
                    pass


def _common_prefix(one: str, other: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return "".join(character for character, _ in same)


def _prefill_request(request: Request, text: str) -> Request:
    """Return a request like `request` that computes `text` and generates nothing."""
    return replace(
        request,
        request_id=uuid4().hex,
        prompt=text,
        sampling=SamplingParams(),
        max_tokens=0,
        priority=BACKGROUND_PRIORITY,
        n_logprobs=None,
        visible_tags=(),
    )
