"""What the next turn of a conversation is sure to begin with, computed while a person reads and writes.

A template says more than what was said: an answer comes back with what ends it and without its thought, tokenized
anew, and the next message has a head. Owns that work and that it gives way. Knows nothing of HTTP or of templates.
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
from app.service.generation.prompt import Prompt
from app.service.pool.engine_client import EngineClient
from quantizer.errors import UserError

__all__ = ["PrefillAhead"]

QUIET_S = 0.25  # after an answer: a program that goes on by itself asks sooner
_BACKGROUND = -1
_ANY_TWO_WORDS = ("A", "B")  # what two prompts have in common before them, every next message begins with

PromptAfter: TypeAlias = Callable[[str], Awaitable[Prompt]]


class PrefillAhead:
    """Computes prompts ahead for one engine, the newest conversation's only."""

    def __init__(self, engine: EngineClient, quiet_s: float = QUIET_S) -> None:
        self._engine = engine
        self._quiet_s = quiet_s
        self._task: asyncio.Task[None] | None = None

    def begin(self, request: Request, prompt_after: PromptAfter) -> None:
        """Compute soon what follows the answer to `request`; `prompt_after` is the prompt if the user says that next.

        Nothing is computed while the engine answers anybody.
        """
        self.cancel_background()
        self._task = asyncio.create_task(self._compute(request, prompt_after))

    def cancel_background(self) -> None:
        """Leave the engine to others at once; what was computed so far stays in its cache."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _compute(self, request: Request, prompt_after: PromptAfter) -> None:
        await asyncio.sleep(self._quiet_s)
        with contextlib.suppress(UserError):  # nobody has asked yet; who does is told
            begin = _common_begin(*[(await prompt_after(word)).text for word in _ANY_TWO_WORDS])
            if not begin or not self._engine.is_available or self._engine.n_running:
                return
            async with self._engine.answer(_prefill_of(request, begin)) as events:
                async for _ in events:
                    pass


def _common_begin(one: str, other: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return "".join(character for character, _ in same)


def _prefill_of(request: Request, text: str) -> Request:
    """Return a request like `request` that computes `text` and says nothing."""
    return replace(
        request,
        request_id=uuid4().hex,
        prompt=text,
        sampling=SamplingParams(),
        max_tokens=0,
        priority=_BACKGROUND,
        n_logprobs=None,
        visible_tags=(),
    )
