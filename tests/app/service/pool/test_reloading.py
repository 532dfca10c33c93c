"""A loaded model is reloaded with another config."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.client.service_client import ServiceClient
from app.engine.messages import EngineConfig, Load, decode, encode
from app.protocol.chat import GenerationOptions, Message
from app.protocol.plan import PlanRequest
from app.service.api.native.library import apply_plan_request
from quantizer.system.errors import UsageError
from tests.app.running import RunningService
from tests.patience import PATIENCE_S

LONG = GenerationOptions(max_tokens=900, samplers={"ignore_eos": True})  # it runs when the reload comes


@pytest.fixture(scope="module")
def own_service(start_service: Callable[..., RunningService]) -> RunningService:
    """A service whose model may be loaded anew."""
    return start_service()


async def test_a_model_is_reloaded_with_the_requested_context(own_service: RunningService) -> None:
    async with ServiceClient(own_service.url) as client:
        before = own_service.model()
        assert await client.reload(PlanRequest(n_ctx=1024)) == "tiny"
        own_service.wait_until(lambda model: model["state"] == "ready" and model["n_ctx"] == 1024)
        assert own_service.model()["worker_pid"] != before["worker_pid"]
        answer = [event async for event in client.chat([Message("user", "still there?")])]
        assert answer


async def test_running_answers_fail_with_a_reason_and_nothing_hangs(own_service: RunningService) -> None:
    async with ServiceClient(own_service.url) as client:
        answer = client.chat([Message("user", "go on")], options=LONG)
        await anext(answer)
        await client.reload(PlanRequest(n_ctx=2048))
        with pytest.raises(Exception, match="reloading"):
            async for _ in answer:
                pass
        own_service.wait_until(lambda model: model["state"] == "ready" and model["n_ctx"] == 2048)


async def test_a_plan_for_another_machine_is_not_loaded(own_service: RunningService, tiny_model: Path) -> None:
    async with ServiceClient(own_service.url) as client:
        for wish in (PlanRequest(vram=("RTX 3060=12GiB",)), PlanRequest(kv_type="q9")):
            with pytest.raises(UsageError):
                await client.reload(wish)
        assert own_service.model()["state"] == "ready"


def test_fields_left_out_of_a_plan_request_stay_as_loaded() -> None:
    loaded = EngineConfig(n_ctx=512, kv_type="q8_0", n_sequences=3, n_threads=5, context_shift=True, uses_gpu=False)
    assert apply_plan_request(PlanRequest(), loaded) == loaded
    assert apply_plan_request(PlanRequest(n_threads=2), loaded) == replace(loaded, n_threads=2)
    assert apply_plan_request(PlanRequest(context_shift=False), loaded) == replace(loaded, context_shift=False)


async def test_a_model_is_reloaded_with_threads_and_context_shift(own_service: RunningService) -> None:
    async with ServiceClient(own_service.url) as client:
        await client.reload(PlanRequest(n_ctx=256, n_threads=1, context_shift=True))
        own_service.wait_until(lambda model: model["state"] == "ready" and model["n_ctx"] == 256)
    body = {"messages": [{"role": "user", "content": "go on"}], "max_tokens": 300, "ignore_eos": True}
    response = await asyncio.to_thread(own_service.http.post, "/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert response.json()["usage"]["completion_tokens"] == 300  # more than the context holds


@pytest.mark.slow
@pytest.mark.parametrize("layers", [None, {}, {"CUDA0": 3, "CUDA1": 0}])
def test_layers_on_gpus_reach_the_worker(layers: dict[str, int] | None) -> None:
    frame = Load("model.gguf", EngineConfig(gpu_layers=layers))
    assert decode(encode(frame)[4:]) == frame  # behind its length
