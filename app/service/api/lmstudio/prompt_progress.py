"""How much of a prompt has been computed while its answer has not begun, in LM Studio's dialect.

Owns when the engine is asked for it. Knows nothing of packets and events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from app.engine.protocol.messages import AnswerProgress
from app.service.models.served_model import ServedModel

Item = TypeVar("Item")
INTERVAL_S = 0.25


async def prompt_progress(model: ServedModel, request_id: str) -> AnswerProgress | None:
    """Return the progress of a request whose prompt is being computed, None for any other."""
    metrics = await model.engine.metrics() if model.is_loaded else None
    running = metrics.running if metrics else ()
    found = next((answer for answer in running if answer.request_id == request_id), None)
    return found if found and found.n_computed_tokens < found.n_prompt_tokens else None


async def with_progress(
    items: AsyncGenerator[Item, None],
    progress: Callable[[], Awaitable[AnswerProgress | None]],
    interval_s: float = INTERVAL_S,
) -> AsyncGenerator[Item | AnswerProgress, None]:
    """Yield `items`, which are closed with this generator; before the first one, `progress` as it grows."""
    coming = asyncio.ensure_future(anext(items, None))
    n_before = -1
    try:
        while not (await asyncio.wait({coming}, timeout=interval_s))[0]:
            found = await progress()
            if found is not None and found.n_computed_tokens > n_before and not coming.done():
                n_before = found.n_computed_tokens
                yield found
        first = coming.result()
        if first is not None:
            yield first
            async for item in items:
                yield item
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await items.aclose()
