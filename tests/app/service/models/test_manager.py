from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.engine.chat_template.template_process import TemplateProcess
from app.library.local.model_files import ModelRef
from app.library.local.resolve import UnknownModelError
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
from quantizer.process import python_command

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
async def _managing(settings: Settings, *options: str, total_bytes: int = 20) -> AsyncIterator[ModelManager]:
    """The models of a service that begins with the first one."""
    command = python_command("app.engine.worker", "--fake", *options)
    models = ModelManager(settings, command, TemplateProcess(), FakeMemory(total_bytes, {**SIZES, CODER_STEM: 10}))
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
    return {model.ref.id: model.engine.status.state for model in models.loaded}


async def test_naming_a_model_loads_nothing_before_it_is_used(settings: Settings) -> None:
    async with _managing(settings) as models:
        second = await models.named("second")
        assert second.engine.status.state == "unloaded"
        await second.n_tokens("hello", add_special=False)
        assert second.engine.status.state == "ready"


async def test_requests_load_what_they_name_and_the_one_used_least_leaves(settings: Settings) -> None:
    async with _managing(settings) as models, _calling(models) as http:
        for name in ("second", "third", "", "second"):
            answer = await http.post("/v1/completions", json={"model": name, **WORDS})
            assert (answer.status_code, answer.json()["model"]) == (200, name or "first")
        assert _states(models) == {"first": "ready", "second": "ready", "third": "unloaded"}


async def test_a_model_that_was_loaded_for_a_request_goes_when_it_was_idle_for_long(settings: Settings) -> None:
    async with _managing(settings) as models, _calling(models) as http:
        await http.post("/v1/completions", json={"model": "second", **WORDS})
        (_, running) = (await http.get("/api/ps")).json()["models"]
        kept = (await models.named("second")).keep_alive
        assert kept.expires_s is not None
        assert not running["expires_at"].startswith("9999")
        assert models.default.keep_alive.expires_s is None, "a person wanted it"
        kept.set_idle_limit(0)
        await http.post("/v1/completions", json={"model": "second", **WORDS})
        while _states(models)["second"] != "unloaded":  # noqa: ASYNC110 - the clock itself is waited for
            await asyncio.sleep(0)
        assert _states(models)["first"] == "ready"


async def test_a_person_who_loads_a_model_keeps_it(settings: Settings) -> None:
    async with _managing(settings) as models:
        await (await models.named("second")).n_tokens("hello", add_special=False)
        assert (await models.named("second")).keep_alive.expires_s is not None
        await models.load("second")
        await (await models.named("second")).n_tokens("hello", add_special=False)
        assert (await models.named("second")).keep_alive.expires_s is None


async def test_while_a_model_loads_its_clients_hear_that_somebody_is_there(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.05)
    async with _managing(settings, "--fake-load-ms", "400") as models, _calling(models) as http:
        body = {"model": "second", "stream": True, **WORDS}
        events = (await http.post("/v1/completions", json=body)).text
        assert events.startswith(":\n\n:\n\n")
        assert events.endswith("data: [DONE]\n\n")
        lines = (await http.post("/api/generate", json={"model": "third", "prompt": "hello", "raw": True})).text
        assert lines.startswith("{"), "clients that read line by line know no comments"


@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate", "/v1/messages", "/completion"])
async def test_a_model_that_cannot_fit_is_refused_and_nobody_leaves(settings: Settings, path: str) -> None:
    async with _managing(settings) as models, _calling(models) as http:
        await http.post("/v1/completions", json={"model": "second", **WORDS})
        messages = [{"role": "user", "content": "hello"}]
        answer = await http.post(path, json={"model": "large", "messages": messages, **WORDS})
        assert answer.status_code == 500
        assert "large is too large" in answer.text
        assert _states(models) == {"first": "ready", "second": "ready", "large": "failed"}


async def test_a_name_of_nobody_lists_who_is_here(settings: Settings) -> None:
    async with _managing(settings) as models:
        with pytest.raises(UnknownModelError, match=r"first.*second"):
            await models.named("nobody")


LISTS = {"/v1/models": ("data", "id"), "/api/tags": ("models", "name"), "/api/v0/models": ("data", "id")}


@pytest.fixture
def coder(settings: Settings, tiny_model: Path) -> str:
    """A model as hubs call it; its id."""
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


@pytest.mark.parametrize(
    "alias",
    [
        CODER.upper(),
        f"{CODER}:latest",
        "qwen2.5-coder",
        "qwen2.5-coder:latest",
        "Qwen2.5-Coder-7B-Q4_K_M",
        "Qwen2.5-Coder-7B-Q4_K_M.gguf",
        "qwen/qwen2.5-coder-7b-gguf",
        "Qwen/Qwen2.5-Coder-7B-GGUF/Qwen2.5-Coder-7B-Q4_K_M",
    ],
)
async def test_a_model_answers_to_all_its_names(settings: Settings, coder: str, alias: str) -> None:
    async with _managing(settings) as models, _calling(models) as http:
        answer = await http.post("/v1/completions", json={"model": alias, **WORDS})
        assert (answer.status_code, answer.json()["model"]) == (200, coder)
        assert (await http.get(f"/v1/models/{alias}")).json()["id"] == coder
        assert len(models.loaded) == 2, "by whatever name, it is one model"


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/v1/completions", ("error", "message")),
        ("/v1/messages", ("error", "message")),
        ("/completion", ("error", "message")),
        ("/api/v0/completions", ("error", "message")),
        ("/api/generate", ("error",)),
    ],
)
async def test_a_404_lists_the_ids_in_the_words_of_its_dialect(
    settings: Settings, coder: str, path: str, where: tuple[str, ...]
) -> None:
    async with _managing(settings) as models, _calling(models) as http:
        messages = [{"role": "user", "content": "hello"}]
        answer = await http.post(path, json={"model": "nobody", "messages": messages, **WORDS})
    assert answer.status_code == 404
    told: Any = answer.json()
    for key in where:
        told = told[key]
    assert coder in told


def test_a_stay_that_is_no_duration_is_refused_at_the_start(settings: Settings) -> None:
    with pytest.raises(UsageError, match="keep_alive"):
        ModelManager(Settings(keep_alive="soon"), [], TemplateProcess())
