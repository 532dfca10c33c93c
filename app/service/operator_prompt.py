"""The person at whose terminal a service runs: hears what comes of loading its model, and may be asked.

Owns that conversation. Knows nothing of terminals or of sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from app.engine.protocol.messages import UnfitPolicy
from app.service.pool.engine_client import EngineClient
from quantizer.errors import UnfitError, UserError

__all__ = ["OperatorPrompt", "report_loading"]


@dataclass(frozen=True, slots=True)
class OperatorPrompt:
    """Who started the service at a terminal: is told what there is to know of the model, and may be asked."""

    tell: Callable[[str], None]
    agrees: Callable[[UnfitError], bool]


async def report_loading(engine: EngineClient, person: OperatorPrompt) -> None:
    """Wait for the model and tell what there is to know of it. Raises UnfitError where it is not agreed to."""
    try:
        await engine.ready()
    except UnfitError as error:
        if not await _agrees(person, error):
            raise
        engine.start(UnfitPolicy.LOAD)
        return await report_loading(engine, person)
    except UserError as error:
        person.tell(str(error))  # whoever asks for an answer is told so too
    for notice in engine.status.notices:
        person.tell(notice)
    return None


async def _agrees(person: OperatorPrompt, error: UnfitError) -> bool:
    """Ask in a thread that may be left waiting for its answer when the service ends."""
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[bool] = asyncio.Queue()

    def ask() -> None:
        assume_yes = person.agrees(error)
        with contextlib.suppress(RuntimeError):  # the loop has ended first
            loop.call_soon_threadsafe(answers.put_nowait, assume_yes)

    threading.Thread(target=ask, name="question", daemon=True).start()
    return await answers.get()
