from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import httpx
import pytest

from app.client.fake import PLAN
from app.engine.chat_template.template_process import TemplateProcess
from app.library.local.model_files import ModelRef
from app.library.local.resolve import UnknownModelError, resolve
from app.service.application import create_app
from app.service.http import streaming
from app.service.http.guard import GuardPolicy
from app.service.jobs.manager import JobManager
from app.service.models.manager import ModelManager
from app.service.models.model_file import read_model_file
from app.service.pool.memory_fake import FakeMemory
from app.service.shutdown_policy import ShutdownPolicy
from app.settings.settings import Settings
from quantizer.errors import UsageError
from tests.app.thread_worker import thread_worker
from tests.quantizer.gguf_files import tiny_llama

CODER, CODER_STEM = "qwen2.5-coder:7b-q4_K_M", "Qwen2.5-Coder-7B-Q4_K_M"
SIZES = {"first": 10, "second": 10, "third": 10, "large": 50}
WORDS: dict[str, Any] = {"prompt": "hello", "max_tokens": 3}


@pytest.fixture
def settings(tmp_path: Path, tiny_model: Path) -> Settings:
    for name in SIZES:
        folder = tmp_path / "data" / "models" / "me" / name
        folder.mkdir(parents=True)
        shutil.copy(tiny_model, folder / f"{name}.gguf")
    return Settings(engine="fake", data_dir=tmp_path / "data", cache_dir=tmp_path / "cache", model="first")


@asynccontextmanager
async def _managing(settings: Settings, *, load_ms: float = 0.0, total_bytes: int = 20) -> AsyncIterator[ModelManager]:
    """The models of a service that begins with the first one."""
    models = ModelManager(
        settings, thread_worker(load_ms=load_ms), TemplateProcess(), FakeMemory(total_bytes, {**SIZES, CODER_STEM: 10})
    )
    path = settings.models_dir / "me" / "first" / "first.gguf"
    models.add(ModelRef("first", path), read_model_file(path)).load()
    try:
        async with asyncio.timeout(30):
            yield models
    finally:
        await models.close()


def _calling(models: ModelManager) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(
        app=create_app(models, JobManager(models.settings), ShutdownPolicy(is_owned=False), GuardPolicy())
    )
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=20)


def _states(models: ModelManager) -> dict[str, str]:
    return {model.ref.id: model.engine.status.state for model in models.opened}


async def test_naming_a_model_loads_nothing_before_it_is_used(settings: Settings) -> None:
    async with _managing(settings) as models:
        second = await models.named("second")
        assert second.engine.status.state == "unloaded"
        await second.n_tokens("hello", add_special=False)
        assert second.engine.status.state == "ready"


async def test_requests_load_the_models_they_name_and_the_least_recently_used_is_evicted(settings: Settings) -> None:
    async with _managing(settings) as models, _calling(models) as http:
        for name in ("second", "third", "", "second"):
            answer = await http.post("/v1/completions", json={"model": name, **WORDS})
            assert (answer.status_code, answer.json()["model"]) == (200, name or "first")
        assert _states(models) == {"first": "ready", "second": "ready", "third": "unloaded"}


async def test_a_model_loaded_by_a_request_is_unloaded_when_idle(settings: Settings) -> None:
    async with _managing(settings) as models, _calling(models) as http:
        await http.post("/v1/completions", json={"model": "second", **WORDS})
        (_, running) = (await http.get("/api/ps")).json()["models"]
        kept = (await models.named("second")).keep_alive
        assert kept.expires_s is not None
        assert not running["expires_at"].startswith("9999")
        kept.set_idle_limit(0)
        await http.post("/v1/completions", json={"model": "second", **WORDS})
        while _states(models)["second"] != "unloaded":  # noqa: ASYNC110 - the clock itself is waited for
            await asyncio.sleep(0)
        assert _states(models)["first"] == "ready"


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
    async with _managing(settings) as models, _calling(models) as http:
        await http.post("/v1/completions", json={"model": "second", **WORDS})
        assert (await http.post(path, json={"model": "second", **body})).status_code == 200
        while _states(models)["second"] != "unloaded":  # noqa: ASYNC110 - the event loop itself is waited for
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
    async with _managing(settings, load_ms=30) as models, _calling(models) as http:

        async def durations() -> tuple[float, float]:
            response = await http.post(path, json={"model": "second", **body})
            end = json.loads(response.text.splitlines()[-1])
            return end["load_duration"] / 1e9, end["total_duration"] / 1e9

        load_s, total_s = await durations()
        assert 0.03 <= load_s < total_s
        load_s, total_s = await durations()
        assert 0 == load_s < total_s


async def test_ps_reports_the_memory_of_a_model_and_the_part_of_it_on_gpus(settings: Settings) -> None:
    """`ollama ps` (0.33) prints the processor from both: `size_vram` of `size` bytes."""
    (host,) = PLAN.devices
    gpu = replace(host, name="CUDA0", kind="gpu", weights_bytes=5000, kv_bytes=600, compute_bytes=70)
    async with _managing(settings) as models, _calling(models) as http:
        model = await models.load("second")
        await model.ready()
        model.engine.status = replace(model.engine.status, plan=replace(PLAN, devices=(host, gpu)))
        running = {entry["name"]: entry for entry in (await http.get("/api/ps")).json()["models"]}
        assert running["second"]["size_vram"] == 5670
        assert running["second"]["size"] == host.n_bytes + 5670
        assert running["first"]["size_vram"] == 0, "it has no plan"
        assert running["first"]["size"] == (settings.models_dir / "me" / "first" / "first.gguf").stat().st_size


async def test_ps_lists_the_model_first_that_stays_longest(settings: Settings) -> None:
    async with _managing(settings) as models, _calling(models) as http:
        for name, keep_alive in (("first", "1h"), ("second", "2h")):
            await http.post("/api/generate", json={"model": name, "keep_alive": keep_alive})
        assert [entry["name"] for entry in (await http.get("/api/ps")).json()["models"]] == ["second", "first"]
        await http.post("/api/generate", json={"model": "first", "keep_alive": -1})
        assert [entry["name"] for entry in (await http.get("/api/ps")).json()["models"]] == ["first", "second"]


async def test_a_model_chosen_in_the_app_is_unloaded_when_idle_and_loads_with_the_next_question(
    settings: Settings,
) -> None:
    async with _managing(settings) as models, _calling(models) as http:
        chosen = await models.load("second")
        await chosen.ready()
        running = {model["name"]: model for model in (await http.get("/api/ps")).json()["models"]}
        assert not running["second"]["expires_at"].startswith("9999")
        chosen.keep_alive.set_idle_limit(0)
        chosen.keep_alive.restart_timer()
        while _states(models)["second"] != "unloaded":  # noqa: ASYNC110 - the clock itself is waited for
            await asyncio.sleep(0)
        assert (await http.post("/v1/completions", json={"model": "second", **WORDS})).status_code == 200


async def test_a_model_that_the_user_keeps_stays_when_it_is_chosen_again(settings: Settings) -> None:
    async with _managing(settings) as models:
        chosen = await models.load("second")
        chosen.keep_alive.set_idle_limit(None)
        await (await models.load("second")).ready()
        assert chosen.keep_alive.expires_s is None


async def test_while_a_model_loads_its_clients_get_keep_alives(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.05)
    async with _managing(settings, load_ms=400) as models, _calling(models) as http:
        body = {"model": "second", "stream": True, **WORDS}
        events = (await http.post("/v1/completions", json=body)).text
        assert events.startswith(":\n\n:\n\n")
        assert events.endswith("data: [DONE]\n\n")
        lines = (await http.post("/api/generate", json={"model": "third", "prompt": "hello", "raw": True})).text
        assert lines.startswith("{"), "clients that read lines support no comments"


async def test_a_model_that_cannot_fit_is_refused_and_none_is_unloaded(settings: Settings) -> None:
    async with _managing(settings) as models, _calling(models) as http:
        await http.post("/v1/completions", json={"model": "second", **WORDS})
        messages = [{"role": "user", "content": "hello"}]
        for path in ("/v1/completions", "/api/generate", "/v1/messages", "/completion"):
            answer = await http.post(path, json={"model": "large", "messages": messages, **WORDS})
            assert answer.status_code == 500, path
            assert "large is too large" in answer.text
        assert _states(models) == {"first": "ready", "second": "ready", "large": "failed"}


async def test_an_unknown_name_lists_the_models(settings: Settings) -> None:
    async with _managing(settings) as models:
        with pytest.raises(UnknownModelError, match=r"first.*second"):
            await models.named("unknown")


# What clients send to any server (kept with their versions in test_placeholder_names.py), by the dialect they speak.
ASKING: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-3.5-turbo": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    "gpt-4o-mini": ("/v1/completions", WORDS),
    "gpt-5-codex": ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
    "claude-sonnet-4-5-20250929": (
        "/v1/messages?beta=true",
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    ),
    "local-model": ("/api/v0/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    "llama-server": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    "default": ("/api/chat", {"messages": [{"role": "user", "content": "hi"}], "stream": False}),
    "gpt-4": ("/api/generate", {"prompt": "hi", "stream": False, "options": {"num_predict": 2}}),
}


@pytest.mark.parametrize("name", ASKING)
async def test_a_name_of_no_local_model_gets_the_loaded_one_which_the_answer_names(
    settings: Settings, name: str
) -> None:
    path, body = ASKING[name]
    async with _managing(settings) as models, _calling(models) as http:
        answer = await http.post(path, json={"model": name, **body})
        assert (answer.status_code, answer.json()["model"]) == (200, "first"), answer.text
        unlike = await http.post(path, json={"model": "firs", **body})
        assert unlike.status_code == 404
        assert "Did you mean first?" in unlike.text
    async with _managing(replace(settings, any_name=False)) as models, _calling(models) as http:
        assert (await http.post(path, json={"model": name, **body})).status_code == 404


@pytest.mark.parametrize(
    ("used", "default", "answers"),
    [
        ([], "first", "first"),
        (["second"], "first", "first"),
        (["second", "third"], "first", "first"),
        ([], "guide", "guide"),
        (["second"], "guide", "second"),
        (["second", "third"], "guide", None),
    ],
)
async def test_a_name_of_no_local_model_means_the_only_one_in_use_or_else_the_default(
    settings: Settings, used: list[str], default: str, answers: str | None
) -> None:
    """With several in use, the guide as the default means nobody's choice."""
    memory = FakeMemory(100, {**SIZES, "guide-Q8_0": 1})
    models = ModelManager(settings, thread_worker(), TemplateProcess(), memory)
    ref = resolve(default, settings)
    models.add(ref, read_model_file(ref.path)).load()
    async with _calling(models) as http:
        for name in used:
            assert (await http.post("/v1/completions", json={"model": name, **WORDS})).status_code == 200
        answer = await http.post("/v1/completions", json={"model": "gpt-4o", **WORDS})
        if answers is None:
            assert answer.status_code == 404
            assert "second" in answer.text
        else:
            assert (answer.status_code, answer.json()["model"]) == (200, answers)
        if used:
            for model in models.opened:
                model.keep_alive.release()
            again = await http.post("/v1/completions", json={"model": "gpt-4o", **WORDS})
            assert again.json().get("model") == answers, "after the idle time, too"
    await models.close()


async def test_a_name_of_no_local_model_means_an_embedding_model_where_vectors_are_wanted(settings: Settings) -> None:
    def pools(writer: gguf.GGUFWriter) -> None:
        writer.add_uint32("llama.pooling_type", 1)

    tiny_llama(settings.models_dir / "me" / "second" / "second.gguf", pools)
    body = {"model": "text-embedding-3-small", "input": "hello"}  # langchain-openai 1.0, LlamaIndex 0.14
    async with _managing(settings, total_bytes=100) as models, _calling(models) as http:
        for path in ("/v1/embeddings", "/api/embed"):
            assert (await http.post(path, json=body)).status_code == 404, "a chat model is not meant"
        assert (await http.post("/v1/embeddings", json={**body, "model": "second"})).status_code == 200
        for path in ("/v1/embeddings", "/api/embed"):
            answer = await http.post(path, json=body)
            assert (answer.status_code, answer.json()["model"]) == (200, "second")
        chat = await http.post("/v1/completions", json={"model": "gpt-4o", **WORDS})
        assert chat.json()["model"] == "first", "an embedding model does not answer"


async def test_a_name_of_a_local_model_is_that_model_whatever_it_is_called(
    settings: Settings, tiny_model: Path
) -> None:
    shutil.copy(tiny_model, settings.models_dir / "gpt-4o.gguf")
    async with _managing(settings) as models:
        assert (await models.answering("gpt-4o")).ref.id == "gpt-4o"
        assert (await models.answering("gpt-4o:latest")).ref.id == "gpt-4o"


LISTS = {"/v1/models": ("data", "id"), "/api/tags": ("models", "name"), "/api/v0/models": ("data", "id")}


@pytest.fixture
def coder(settings: Settings, tiny_model: Path) -> str:
    """Return the id of a model named as on the hub."""
    folder = settings.models_dir / "Qwen" / "Qwen2.5-Coder-7B-GGUF"
    folder.mkdir(parents=True)
    shutil.copy(tiny_model, folder / f"{CODER_STEM}.gguf")
    return CODER


async def test_every_dialect_lists_the_same_ids(settings: Settings, coder: str) -> None:
    async with _managing(settings) as models, _calling(models) as http:
        listed = {
            path: [entry[field] for entry in (await http.get(path)).json()[items]]
            for path, (items, field) in LISTS.items()
        }
    assert set(map(tuple, listed.values())) == {tuple(listed["/api/tags"])}
    assert {coder, "first", "second"} <= {*listed["/api/tags"]}


async def test_a_model_answers_to_all_its_names(settings: Settings, coder: str) -> None:
    aliases = [
        CODER.upper(),
        f"{CODER}:latest",
        "qwen2.5-coder",
        "qwen2.5-coder:latest",
        CODER_STEM,
        f"{CODER_STEM}.gguf",
        "qwen/qwen2.5-coder-7b-gguf",
        f"Qwen/Qwen2.5-Coder-7B-GGUF/{CODER_STEM}",
    ]
    async with _managing(settings) as models, _calling(models) as http:
        for alias in aliases:
            answer = await http.post("/v1/completions", json={"model": alias, **WORDS})
            assert (answer.status_code, answer.json()["model"]) == (200, coder), alias
            assert (await http.get(f"/v1/models/{alias}")).json()["id"] == coder
        assert len(models.opened) == 2, "by whatever name, it is one model"


async def test_another_link_to_a_file_of_the_same_name_is_the_same_model(settings: Settings, tmp_path: Path) -> None:
    """So are a model of Ollama's and the link that imports it."""
    link = tmp_path / "ollama" / "second.gguf"
    link.parent.mkdir()
    link.hardlink_to(settings.models_dir / "me" / "second" / "second.gguf")
    other = shutil.copy(settings.models_dir / "me" / "second" / "second.gguf", tmp_path / "second.gguf")
    async with _managing(settings) as models:
        ids = [(await models.load(name)).ref.id for name in ("second", str(link), str(other))]
    assert ids == ["second", "second", "second-2"]


async def test_a_404_lists_the_ids_in_the_form_of_its_dialect(settings: Settings, coder: str) -> None:
    paths = {
        "/v1/completions": ("error", "message"),
        "/v1/messages": ("error", "message"),
        "/completion": ("error", "message"),
        "/api/v0/completions": ("error", "message"),
        "/api/generate": ("error",),
    }
    async with _managing(settings) as models, _calling(models) as http:
        for path, keys in paths.items():
            messages = [{"role": "user", "content": "hello"}]
            answer = await http.post(path, json={"model": "unknown", "messages": messages, **WORDS})
            assert answer.status_code == 404, path
            message: Any = answer.json()
            for key in keys:
                message = message[key]
            assert coder in message


def test_an_invalid_keep_alive_is_refused_at_the_start(settings: Settings) -> None:
    with pytest.raises(UsageError, match="keep_alive"):
        ModelManager(Settings(keep_alive="soon"), thread_worker(), TemplateProcess())
