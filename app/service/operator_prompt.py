"""Reports loading to the user who started the service in a terminal, and asks about a model that does not fit.

Independent of terminals and of sockets.
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
    """The terminal of the user: `show` prints a notice, `confirm` asks whether to load a model that does not fit."""

    show: Callable[[str], None]
    confirm: Callable[[UnfitError], bool]


async def report_loading(engine: EngineClient, operator: OperatorPrompt) -> None:
    """Wait for the model and show notices and errors. Raises UnfitError where the user does not confirm."""
    try:
        await engine.ready()
    except UnfitError as error:
        if not await _is_confirmed(operator, error):
            raise
        engine.start(UnfitPolicy.LOAD)
        return await report_loading(engine, operator)
    except UserError as error:
        operator.show(str(error))  # requests fail with it too
    for notice in engine.status.notices:
        operator.show(notice)
    return None


async def _is_confirmed(operator: OperatorPrompt, error: UnfitError) -> bool:
    """Ask in a thread, which the end of the service may leave waiting for its answer."""
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[bool] = asyncio.Queue()

    def ask() -> None:
        is_confirmed = operator.confirm(error)
        with contextlib.suppress(RuntimeError):  # the loop has ended first
            loop.call_soon_threadsafe(answers.put_nowait, is_confirmed)

    threading.Thread(target=ask, name="question", daemon=True).start()
    return await answers.get()
