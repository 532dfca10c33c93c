"""Reading before a question over HTTP, with a fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

from app.client.service_client import ServiceClient
from app.engine.messages import EngineMetrics
from app.protocol.chat import GenerationOptions, Message, PromptProgress
from offload.devices.host import runs_on_battery
from tests.app.one_file_service import BASE, OTHER, Service, serving

DOCUMENT = "notes.txt:\n```\n" + "A line of the notes, and some more of it.\n" * 60 + "```\n\n"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": DOCUMENT}]
KEY = {"prompt_cache_key": "chat"}


@asynccontextmanager
async def loaded(folder: Path, tiny_model: Path, **how: Any) -> AsyncIterator[Service]:
    async with serving(folder, tiny_model, prefill_ahead=True, **how) as service:
        await service.models.default.ready()
        yield service


@pytest.fixture
async def service(tmp_path: Path, tiny_model: Path) -> AsyncIterator[Service]:
    async with loaded(tmp_path, tiny_model) as service:
        yield service


async def read(service: Service, model: str = BASE, **more: Any) -> list[PromptProgress]:
    body = {"model": model, "messages": MESSAGES, **KEY, **more}
    answer = await service.http.post("/api/localllm/read-ahead", json=body)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    return [PromptProgress(**json.loads(line)) for line in lines if line.startswith("{")]


async def asked(service: Service, text: str = "What is it about?", **more: Any) -> dict[str, Any]:
    messages = [MESSAGES[0], {"role": "user", "content": DOCUMENT + text}]
    body = {"model": BASE, "messages": messages, "max_tokens": 3, **KEY, **more}
    answer = await service.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


async def seen(service: Service) -> EngineMetrics:
    """A busy machine may take more than the second after which there are no metrics."""
    while (metrics := await service.models.default.engine.metrics()) is None:  # noqa: ASYNC110 - nobody notifies
        await asyncio.sleep(0.005)
    return metrics


async def until_running(service: Service, priority: int = -1) -> None:
    while not any(  # noqa: ASYNC110 - the worker notifies nobody
        (found := service.models.default.engine.running_request(each.request_id)) and found.priority == priority
        for each in (await seen(service)).running
    ):
        await asyncio.sleep(0.005)


async def test_a_question_computes_only_its_end_after_it_was_read(service: Service) -> None:
    progress = await read(service)
    assert progress[-1].n_read == progress[-1].n_tokens > len(DOCUMENT)
    usage = await asked(service)
    n_computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    assert usage["prompt_tokens"] > len(DOCUMENT)
    assert n_computed <= len("What is it about?") + 20, "the question, and what opens the answer"
    counters = (await seen(service)).counters
    assert (counters.n_read_ahead_tokens, counters.n_vain_tokens) == (progress[-1].n_tokens, 0)
    status = (await service.http.get("/api/localllm/status")).json()["models"][0]["counters"]
    assert status["n_read_ahead_tokens"] == progress[-1].n_tokens
    metrics = (await service.http.get("/metrics")).text
    assert f'localllm_read_ahead_tokens_total{{model="base"}} {progress[-1].n_tokens}' in metrics


async def test_a_later_state_of_a_draft_goes_on_where_the_former_ended(service: Service) -> None:
    first = await read(service)
    longer = await read(service, messages=[MESSAGES[0], {"role": "user", "content": f"{DOCUMENT}Tell me in short"}])
    assert longer[-1].n_cached >= first[-1].n_tokens - 1
    again = await read(service)
    assert again[-1].n_tokens - again[-1].n_cached <= 1


async def test_what_the_draft_no_longer_says_was_read_in_vain(service: Service) -> None:
    await read(service, messages=[{"role": "user", "content": "a" * 100}])
    await read(service, messages=[{"role": "user", "content": "b" * 40}])
    assert (await seen(service)).counters.n_vain_tokens == 100


async def test_a_question_of_the_same_chat_ends_the_reading_and_loses_nothing(tmp_path: Path, tiny_model: Path) -> None:
    async with loaded(tmp_path, tiny_model, step_ms=20) as service:
        reading = asyncio.create_task(read(service))
        await until_running(service)
        usage = await asked(service)
        progress = await reading
        assert not progress or progress[-1].n_read < progress[-1].n_tokens
        computed = (await seen(service)).counters.n_prefill_tokens
        assert computed == usage["prompt_tokens"], "nothing was computed twice, nothing left out"


async def test_nothing_is_read_while_somebody_waits_for_an_answer(tmp_path: Path, tiny_model: Path) -> None:
    async with loaded(tmp_path, tiny_model, step_ms=20) as service:
        other = asyncio.create_task(service.ask(BASE, max_tokens=40, ignore_eos=True))
        await until_running(service, 0)
        assert await read(service) == []
        await other


async def test_a_batch_waits_for_what_is_read(tmp_path: Path, tiny_model: Path) -> None:
    async with loaded(tmp_path, tiny_model, step_ms=5) as service:
        body = {"model": BASE, "prompt": "on and on", "max_tokens": 200, "ignore_eos": True}
        headers = {"X-Localllm-Priority": "batch"}
        batch = asyncio.create_task(service.http.post("/v1/completions", json=body, headers=headers))
        await until_running(service, -2)
        progress = await read(service)
        assert progress[-1].n_read == progress[-1].n_tokens
        assert not batch.done()
        assert (await batch).json()["usage"]["completion_tokens"] == 200


async def test_a_client_that_leaves_ends_the_reading(tmp_path: Path, tiny_model: Path) -> None:
    async with loaded(tmp_path, tiny_model, step_ms=20) as service:
        reading = asyncio.create_task(read(service))
        await until_running(service)
        reading.cancel()
        while (await seen(service)).running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        n_computed = (await seen(service)).counters.n_prefill_tokens
        assert n_computed < len(DOCUMENT)
        await asyncio.sleep(0.1)
        assert (await seen(service)).counters.n_prefill_tokens == n_computed


async def test_no_model_is_loaded_for_it_nor_kept(service: Service) -> None:
    assert await read(service, OTHER) == []
    assert (await service.states()).get(OTHER, "unloaded") == "unloaded"
    assert (await service.call("unload", model=BASE)).status_code == 200
    assert await read(service) == []
    assert (await service.states())[BASE] == "unloaded"


async def test_what_does_not_fit_is_left_to_the_question(tmp_path: Path, tiny_model: Path) -> None:
    async with loaded(tmp_path, tiny_model, ctx=256) as service:
        assert await read(service) == []
        assert (await service.states())[BASE] == "ready"


async def test_the_setting_switches_it_off(tmp_path: Path, tiny_model: Path) -> None:
    async with serving(tmp_path, tiny_model) as service:
        await service.models.default.ready()
        assert await read(service) == []


@pytest.mark.parametrize(("plugged", "on_battery"), [(True, False), (False, True), (None, False)])
async def test_on_battery_nothing_is_read(
    service: Service, monkeypatch: pytest.MonkeyPatch, plugged: bool | None, on_battery: bool
) -> None:
    battery = SimpleNamespace(percent=60, power_plugged=plugged)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    assert runs_on_battery() == on_battery
    assert (await read(service) == []) == on_battery


def test_a_machine_without_a_battery_is_plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    assert not runs_on_battery()

    def fail() -> None:
        raise FileNotFoundError("/sys/class/power_supply/BAT0/status")

    monkeypatch.setattr(psutil, "sensors_battery", fail)
    assert not runs_on_battery()
    monkeypatch.delattr(psutil, "sensors_battery")
    assert not runs_on_battery()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"messages": []}, 400),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, 400),
        ({"model": "mistral-7b"}, 404),
    ],
)
async def test_what_is_no_question_is_refused(service: Service, body: dict[str, Any], status: int) -> None:
    answer = await service.http.post("/api/localllm/read-ahead", json={"messages": MESSAGES, **body})
    assert answer.status_code == status
    assert answer.json()["error"]["remedy"]


async def test_a_deleted_chat_takes_what_was_read_with_it(service: Service) -> None:
    await read(service)
    await service.call("forget-prefixes", prompt_cache_keys=["chat"])
    assert (await asked(service))["prompt_tokens_details"]["cached_tokens"] == 0


async def test_the_client_yields_the_progress_and_sends_what_it_would_ask(service: Service) -> None:
    async with ServiceClient("http://localhost", transport=httpx.ASGITransport(app=service.app)) as client:
        messages = [Message("system", "Be brief."), Message("user", DOCUMENT)]
        options = GenerationOptions(prompt_cache_key="chat")
        seen = [progress async for progress in client.read_ahead(messages, BASE, options)]
    assert seen[-1].n_read == seen[-1].n_tokens > len(DOCUMENT)
    assert (await asked(service))["prompt_tokens_details"]["cached_tokens"] >= seen[-1].n_tokens - 1
