"""How much of a prompt is read while its answer is awaited, for every dialect that reports it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from app.protocol.chat import PromptProgress
from app.service.models.served_model import ServedModel

Item = TypeVar("Item")
INTERVAL_S = 0.25


async def prompt_progress(model: ServedModel, request_id: str) -> PromptProgress | None:
    """Return the progress of a request whose prompt is being read, or that waits for other answers; None for any
    other."""
    metrics = await model.engine.metrics() if model.is_loaded else None
    if metrics is None:
        return None
    found = next((answer for answer in metrics.running if answer.request_id == request_id), None)
    if found is None:
        n_ahead = metrics.occupancy.n_running if metrics.occupancy.n_waiting else 0
        return PromptProgress(n_ahead=n_ahead) if n_ahead else None
    if found.n_computed_tokens >= found.n_prompt_tokens:
        return None
    threads = metrics.threads
    return PromptProgress(
        n_tokens=found.n_prompt_tokens,
        n_cached=found.n_cached_tokens,
        n_read=found.n_computed_tokens,
        elapsed_s=found.prompt_s,
        left_s=found.prompt_left_s,
        machine=threads if threads is not None and threads.is_machine_busy else None,
    )


async def with_progress(
    items: AsyncGenerator[Item, None],
    progress: Callable[[], Awaitable[PromptProgress | None]],
    interval_s: float = INTERVAL_S,
    *,
    only_growth: bool = False,
) -> AsyncGenerator[Item | PromptProgress, None]:
    """Yield `items`, which are closed with this generator; before the first one `progress`, again and again, or with
    `only_growth` where more of the prompt is read."""
    coming = asyncio.ensure_future(anext(items, None))
    n_before = 0
    try:
        while not (await asyncio.wait({coming}, timeout=interval_s))[0]:
            found = await progress()
            if found is None or coming.done() or (only_growth and found.n_read <= n_before):
                continue
            n_before = found.n_read
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
