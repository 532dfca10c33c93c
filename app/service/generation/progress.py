"""How much of a prompt is read while its answer is awaited, for every dialect that reports it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from app.protocol.chat import PromptProgress
from app.service.generation.generation import Answer, Delta, Generation
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
    read_prompt: Callable[[Item], PromptProgress | None] | None = None,
) -> AsyncGenerator[Item | PromptProgress, None]:
    """Yield `items`, which are closed with this generator; before the first one `progress`, again and again, or with
    `only_growth` where more of the prompt is read. With `read_prompt`, which says it of the first item, there are
    always two at least: what was cached, and the whole prompt (source: `send_partial_response` of llama-server)."""
    coming = asyncio.ensure_future(anext(items, None))
    began_s, n_before = time.monotonic(), 0
    has_begun = read_prompt is None
    try:
        while not (await asyncio.wait({coming}, timeout=interval_s))[0]:
            found = await progress()
            if found is None or coming.done() or (only_growth and found.n_read <= n_before):
                continue
            n_before = found.n_read
            if found.n_tokens and not has_begun:
                has_begun = True
                yield replace(found, n_read=found.n_cached, elapsed_s=0.0)
            yield found
        first = coming.result()
        if first is not None:
            if read_prompt is not None and (whole := read_prompt(first)) is not None:
                if not has_begun:
                    yield replace(whole, n_read=whole.n_cached, elapsed_s=0.0)
                yield replace(whole, elapsed_s=time.monotonic() - began_s)
            yield first
            async for item in items:
                yield item
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await items.aclose()


def parts_with_progress(
    generation: Generation, model: ServedModel
) -> AsyncGenerator[tuple[Answer, Delta | None] | PromptProgress, None]:
    """Return the parts of `generation`, and how much of its prompt is read before: what was cached first, all of it
    last."""
    progress = partial(prompt_progress, model, generation.requests[0].request_id)
    return with_progress(generation.parts(model), progress, read_prompt=lambda part: part[0].read_prompt)
