"""`client.llm.load(…, {signal})` of the JavaScript SDK 1.5.0, whose signal is aborted while the model loads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.service.api.lmstudio.sdk_models import MODEL_ENDPOINTS
from app.service.api.lmstudio.sdk_session import Channel, Context
from app.service.http.access_log import RequestRecord
from app.service.models.manager import ModelManager
from tests.app.service.models.managed import library_settings, managing, states


@pytest.mark.parametrize(("endpoint", "name"), [("loadModel", "modelKey"), ("getOrLoad", "identifier")])
async def test_a_cancelled_loading_leaves_no_model_behind(
    tmp_path: Path, tiny_model: Path, endpoint: str, name: str
) -> None:
    async with managing(library_settings(tmp_path, tiny_model), load_ms=300) as models:
        packets = await _load(models, endpoint, {name: "second"}, is_cancelled=True)
        assert not {"success", "loadSuccess"} & set(packets)
        while states(models)["second"] != "unloaded":  # noqa: ASYNC110 - the clock itself is waited for
            await asyncio.sleep(0)
        assert (await _load(models, endpoint, {name: "second"}, is_cancelled=False))[-1] in ("success", "loadSuccess")


async def _load(models: ModelManager, endpoint: str, body: dict[str, Any], *, is_cancelled: bool) -> list[str]:
    """Return the kinds of packets of one loading, which is cancelled at its first progress if `is_cancelled`."""
    kinds: list[str] = []

    async def tell(_text: str) -> None:
        """Take a warning."""

    async def send(frame: Mapping[str, Any]) -> None:
        kinds.append(frame["message"]["type"])
        if is_cancelled and "rogress" in kinds[-1]:
            channel.is_cancelled.set()

    channel, record = Channel(1, send), RequestRecord()
    context = Context(SimpleNamespace(models=models, instances={}), "llm", record, tell)  # type: ignore[arg-type]
    with record.until_end:
        function = MODEL_ENDPOINTS[endpoint]
        await function.stream(context, function.parameter.model_validate(body), channel)
    return kinds
