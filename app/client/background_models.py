"""Vectors for which nobody waits: none is computed while somebody waits for an answer, and no model is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from app.client.service_client import ServiceClient
from app.protocol.status import ServiceStatus
from offload.devices.host import runs_on_battery
from quantizer.system.errors import EngineError

_LOOK_EVERY_S = 2.0
_LATER = "It goes on once the model is loaded, as a search does, and the machine has power."


class BackgroundModels:
    """The `TextModels` of the service to which `client` leads, which yield to every request of the service. `embed`
    raises EngineError where the model is not loaded, and on battery."""

    def __init__(
        self,
        client: ServiceClient,
        on_battery: Callable[[], bool] = runs_on_battery,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._on_battery = on_battery
        self._sleep = sleep

    async def embed(self, texts: Sequence[str], model: str) -> list[bytes]:
        while is_wanted(status := await self._client.status()):
            await self._sleep(_LOOK_EVERY_S)
        found = status.model(model)
        if found is None or found.state != "ready" or self._on_battery():
            raise EngineError(f"{model} computes no vectors in the background now.", _LATER)
        return await self._client.embed(texts, model)

    async def rerank(self, query: str, documents: Sequence[str], model: str) -> list[float]:
        return await self._client.rerank(query, documents, model)


def is_wanted(status: ServiceStatus) -> bool:
    """Return whether a model loads, answers, or has an answer that waits."""
    return any(
        model.state == "loading" or ((load := model.occupancy) is not None and load.n_running + load.n_waiting > 0)
        for model in status.models
    )
