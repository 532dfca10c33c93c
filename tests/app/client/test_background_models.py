from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.client.background_models import BackgroundModels
from app.protocol.status import ModelStatus, Occupancy, ServiceStatus
from quantizer.system.errors import EngineError
from tests.app.client.scripted_client import READY

_EMBEDDER = replace(READY, id="minilm", n_ctx=512)
_ANSWERING = replace(READY, occupancy=Occupancy(1, 0, 10, 100))
_WAITING = replace(READY, occupancy=Occupancy(0, 1, 10, 100))
_LOADING = replace(READY, state="loading", progress=0.5)


class _Client:
    """A service whose status is, at each look, the next of `looks`, and then the last."""

    def __init__(self, *looks: tuple[ModelStatus, ...]) -> None:
        self.looks = list(looks)
        self.embedded: list[str] = []

    async def status(self) -> ServiceStatus:
        models = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return ServiceStatus(version="0", default_model="guide", models=models)

    async def embed(self, texts: list[str], model: str) -> list[bytes]:
        self.embedded += texts
        return [b"v" for _ in texts]


def _models(client: Any, *, on_battery: bool = False) -> tuple[BackgroundModels, list[float]]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        assert client.embedded == [], "nothing is computed while somebody waits"
        slept.append(seconds)

    return BackgroundModels(client, lambda: on_battery, sleep), slept


async def test_vectors_wait_for_every_answer_and_every_load() -> None:
    client = _Client(*((busy, _EMBEDDER) for busy in (_ANSWERING, _WAITING, _LOADING, READY)))
    models, slept = _models(client)
    assert await models.embed(["a", "b"], "minilm") == [b"v", b"v"]
    assert len(slept) == 3


@pytest.mark.parametrize(
    ("status", "on_battery"),
    [((READY,), False), ((replace(_EMBEDDER, state="unloaded"),), False), ((_EMBEDDER,), True)],
)
async def test_nothing_is_loaded_and_nothing_computed_on_battery(
    status: tuple[ModelStatus, ...], on_battery: bool
) -> None:
    client = _Client(status)
    models, _ = _models(client, on_battery=on_battery)
    with pytest.raises(EngineError, match="no vectors in the background"):
        await models.embed(["a"], "minilm")
    assert client.embedded == []
