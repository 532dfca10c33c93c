"""Loading and unloading models by LM Studio's dialect, which may give options that last until the model is unloaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from app.engine.protocol.messages import EngineConfig
from app.protocol.errors import RequestError
from app.service.models.manager import ModelManager
from app.service.models.served_model import ServedModel

_PROGRESS_INTERVAL_S = 0.1


async def begin_loading(
    models: ModelManager, model: ServedModel, change: Callable[[EngineConfig], EngineConfig] | None
) -> None:
    """Begin to load `model`, with its options changed; one that is loaded so already stays as it is.

    Raises RequestError where loading it anew would end running answers.
    """
    config = model.engine.config
    if change is None or change(config) == config:
        model.load()
        return
    if model.engine.n_running or model.keep_alive.is_used:
        raise RequestError(f"{model.ref.id} is in use.", "Stop its answers, or wait for them.")
    await models.reload(model.ref.id, change, until_unloaded=True)


async def loading(model: ServedModel) -> AsyncGenerator[float, None]:
    """Yield the progress of loading `model` whenever it has grown, to its end. Raises the error of loading."""
    ready = asyncio.ensure_future(model.ready())
    last = -1.0
    try:
        while not ready.done():
            if (progress := model.engine.status.progress) > last:
                last = progress
                yield progress
            await asyncio.wait({ready}, timeout=_PROGRESS_INTERVAL_S)
        ready.result()
    finally:
        ready.cancel()


def unload(model: ServedModel) -> None:
    """Unload an idle model until its next use. Raises RequestError for one that is busy."""
    if model.is_busy:
        raise RequestError(f"{model.ref.id} is in use.", "Stop its answers, or wait for them.")
    model.keep_alive.release()
