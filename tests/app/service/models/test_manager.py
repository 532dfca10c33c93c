from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.chat_template.template_process import TemplateProcess
from app.service.http import streaming
from app.service.models.manager import ModelManager
from app.settings.settings import Settings
from quantizer.system.errors import UsageError
from tests.app.client.scripted_client import PLAN
from tests.app.service.models.managed import WORDS, calling, library_settings, managing, states
from tests.app.thread_worker import thread_worker


@pytest.fixture
def settings(tmp_path: Path, tiny_model: Path) -> Settings:
    return library_settings(tmp_path, tiny_model)


async def test_naming_a_model_loads_nothing_before_it_is_used(settings: Settings) -> None:
    async with managing(settings) as models:
        second = await models.named("second")
        assert second.engine.status.state == "unloaded"
        await second.n_tokens("hello", add_special=False)
        assert second.engine.status.state == "ready"


async def test_requests_load_the_models_they_name_and_the_least_recently_used_is_evicted(settings: Settings) -> None:
    async with managing(settings) as models, calling(models) as http:
        for name in ("second", "third", "", "second"):
            answer = await http.post("/v1/completions", json={"model": name, **WORDS})
            assert (answer.status_code, answer.json()["model"]) == (200, name or "first")
        assert states(models) == {"first": "ready", "second": "ready", "third": "unloaded"}


async def test_what_a_load_would_unload_is_told_and_nothing_is_opened_for_it(settings: Settings) -> None:
    async with managing(settings) as models, calling(models) as client:
        for name in ("first", "second"):
            await client.post("/v1/completions", json={"model": name, **WORDS})

        async def evictions(**body: Any) -> dict[str, Any]:
            response = await client.post("/api/localllm/evictions", json=body)
            answer: dict[str, Any] = response.json()
            return answer

        assert await evictions(model="third") == {"runs": True, "models": ["first"]}
        assert await evictions(model="second") == {"runs": True, "models": []}
        assert await evictions(model="large") == {"runs": False, "models": []}
        assert "error" in await evictions(model="gone")
        assert states(models) == {"first": "ready", "second": "ready"}


async def test_a_load_is_planned_with_the_context_that_the_user_chose_at_least(settings: Settings) -> None:
    async with managing(replace(settings, ctx=4096), max_n_ctx=2048) as models:
        assert await models.evicted_for("second", 512) is None


async def test_a_model_loaded_by_a_request_is_unloaded_when_idle(settings: Settings) -> None:
    async with managing(settings) as models, calling(models) as http:
        await http.post("/v1/completions", json={"model": "second", **WORDS})
        (_, running) = (await http.get("/api/ps")).json()["models"]
        kept = (await models.named("second")).keep_alive
        assert kept.expires_s is not None
        assert not running["expires_at"].startswith("9999")
        kept.set_idle_limit(0)
        await http.post("/v1/completions", json={"model": "second", **WORDS})
        while states(models)["second"] != "unloaded":  # noqa: ASYNC110 - the clock itself is waited for
            await asyncio.sleep(0)
        assert states(models)["first"] == "ready"


# What each client sends to unload a model, or to keep it no longer than the answer.
UNLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "Open WebUI 0.6, unload_model": ("/api/generate", {"keep_alive": 0, "prompt": ""}),
    "ollama 0.13, stop": ("/api/generate", {"keep_alive": "0s"}),
    "ollama-python 0.6, chat": (
        "/api/chat",
        {"keep_alive": 0, "messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": 2}},
    ),
    "LM Studio's ttl": ("/v1/completions", {"ttl": 0, **WORDS}),
    "LM Studio's ttl, embeddings": ("/v1/embeddings", {"ttl": 0, "input": "hello"}),
}


@pytest.mark.parametrize("client", UNLOADS)
async def test_after_a_client_has_unloaded_a_model_it_loads_once_and_stays_for_the_usual_time(
    settings: Settings, client: str
) -> None:
    path, body = UNLOADS[client]
    async with managing(settings) as models, calling(models) as http:
        await http.post("/v1/completions", json={"model": "second", **WORDS})
        assert (await http.post(path, json={"model": "second", **body})).status_code == 200
        while states(models)["second"] != "unloaded":  # noqa: ASYNC110 - the event loop itself is waited for
            await asyncio.sleep(0)
        pids = set()
        for _ in range(3):
            await http.post("/v1/completions", json={"model": "second", **WORDS})
            pids.add((await models.named("second")).engine.worker_pid)
        expires_s = (await models.named("second")).keep_alive.expires_s
        assert len(pids) == 1
        assert expires_s == pytest.approx(time.time() + 600, abs=60)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"prompt": "hello", "stream": False, "options": {"num_predict": 2}}),
        ("/api/generate", {"prompt": "hello", "options": {"num_predict": 2}}),
        ("/api/chat", {"messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": 2}}),
        ("/api/embed", {"input": "hello"}),
    ],
)
async def test_ollamas_clients_learn_how_long_loading_took(settings: Settings, path: str, body: dict[str, Any]) -> None:
    async with managing(settings, load_ms=30) as models, calling(models) as http:

        async def durations() -> tuple[float, float]:
            response = await http.post(path, json={"model": "second", **body})
            end = json.loads(response.text.splitlines()[-1])
            return end["load_duration"] / 1e9, end["total_duration"] / 1e9

        load_s, total_s = await durations()
        assert 0.03 <= load_s < total_s
        load_s, total_s = await durations()
        assert 0 < load_s < total_s, "the time to find it and to make its prompt"


async def test_ps_reports_the_memory_of_a_model_and_the_part_of_it_on_gpus(settings: Settings) -> None:
    """`ollama ps` (0.33) prints the processor from both: `size_vram` of `size` bytes."""
    (host,) = PLAN.devices
    gpu = replace(host, name="CUDA0", kind="gpu", weights_bytes=5000, kv_bytes=600, compute_bytes=70)
    async with managing(settings) as models, calling(models) as http:
        model = await models.load("second")
        await model.ready()
        model.engine.status = replace(model.engine.status, plan=replace(PLAN, devices=(host, gpu)))
        running = {entry["name"]: entry for entry in (await http.get("/api/ps")).json()["models"]}
        assert running["second"]["size_vram"] == 5670
        assert running["second"]["size"] == host.n_bytes + 5670
        assert running["first"]["size_vram"] == 0, "it has no plan"
        assert running["first"]["size"] == (settings.models_dir / "me" / "first" / "first.gguf").stat().st_size


async def test_ps_lists_the_model_first_that_stays_longest(settings: Settings) -> None:
    async with managing(settings) as models, calling(models) as http:
        for name, keep_alive in (("first", "1h"), ("second", "2h")):
            await http.post("/api/generate", json={"model": name, "keep_alive": keep_alive})
        assert [entry["name"] for entry in (await http.get("/api/ps")).json()["models"]] == ["second", "first"]
        await http.post("/api/generate", json={"model": "first", "keep_alive": -1})
        assert [entry["name"] for entry in (await http.get("/api/ps")).json()["models"]] == ["first", "second"]


async def test_a_model_chosen_in_the_app_is_unloaded_when_idle_and_loads_with_the_next_question(
    settings: Settings,
) -> None:
    async with managing(settings) as models, calling(models) as http:
        chosen = await models.load("second")
        await chosen.ready()
        running = {model["name"]: model for model in (await http.get("/api/ps")).json()["models"]}
        assert not running["second"]["expires_at"].startswith("9999")
        chosen.keep_alive.set_idle_limit(0)
        chosen.keep_alive.restart_timer()
        while states(models)["second"] != "unloaded":  # noqa: ASYNC110 - the clock itself is waited for
            await asyncio.sleep(0)
        assert (await http.post("/v1/completions", json={"model": "second", **WORDS})).status_code == 200


async def test_a_model_that_the_user_keeps_stays_when_it_is_chosen_again(settings: Settings) -> None:
    async with managing(settings) as models:
        chosen = await models.load("second")
        chosen.keep_alive.set_idle_limit(None)
        await (await models.load("second")).ready()
        assert chosen.keep_alive.expires_s is None


async def test_while_a_model_loads_its_clients_get_keep_alives(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.05)
    async with managing(settings, load_ms=400) as models, calling(models) as http:
        body = {"model": "second", "stream": True, **WORDS}
        events = (await http.post("/v1/completions", json=body)).text
        assert events.startswith(":\n\n:\n\n")
        assert events.endswith("data: [DONE]\n\n")
        lines = (await http.post("/api/generate", json={"model": "third", "prompt": "hello", "raw": True})).text
        assert lines.startswith("{"), "clients that read lines support no comments"


async def test_a_model_that_cannot_fit_is_refused_and_none_is_unloaded(settings: Settings) -> None:
    async with managing(settings) as models, calling(models) as http:
        await http.post("/v1/completions", json={"model": "second", **WORDS})
        messages = [{"role": "user", "content": "hello"}]
        for path in ("/v1/completions", "/api/generate", "/v1/messages", "/completion"):
            answer = await http.post(path, json={"model": "large", "messages": messages, **WORDS})
            assert answer.status_code == 500, path
            assert "large is too large" in answer.text
        assert states(models) == {"first": "ready", "second": "ready", "large": "failed"}


def test_an_invalid_keep_alive_is_refused_at_the_start(settings: Settings) -> None:
    with pytest.raises(UsageError, match="keep_alive"):
        ModelManager(Settings(keep_alive="soon"), thread_worker(), TemplateProcess())
