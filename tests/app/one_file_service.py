"""A service in this process over a fake engine, with models that are made of one file."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from app.engine.chat_template.template_process import TemplateProcess
from app.library.local.model_files import ModelRef
from app.service.application import create_app
from app.service.http.guard import GuardPolicy
from app.service.jobs.manager import JobManager
from app.service.models.manager import ModelManager
from app.service.models.model_file import read_model_file
from app.service.pool.memory import Memory
from app.service.shutdown_policy import ShutdownPolicy
from app.settings.settings import Settings
from tests.app.service.pool.memory_fake import FakeMemory
from tests.app.thread_worker import thread_worker
from tests.patience import PATIENCE_S

__all__ = ["BASE", "HELLO", "MADE", "OTHER", "SIZES", "Service", "serving", "until"]

_PATIENCE_S = 600.0  # thirty turns of an agent take a minute beside a load
BASE, MADE, OTHER = "base", "mario", "other"
SIZES = dict.fromkeys((BASE, MADE, OTHER, "luigi", "peach", "link"), 10)
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


@dataclass(frozen=True)
class Service:
    """A service in this process that begins with the base."""

    models: ModelManager
    http: httpx.AsyncClient
    app: Starlette

    async def make(self, name: str, **what: Any) -> None:
        made = await self.http.post("/api/create", json={"model": name, "from": BASE, "stream": False, **what})
        assert made.status_code == 200, made.text

    async def ask(self, name: str, **more: Any) -> dict[str, Any]:
        answer = await self.http.post("/v1/chat/completions", json={"model": name, **HELLO, **more})
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        assert told["model"] == name
        return told

    async def posted(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer of the made model to `body`."""
        answer = await self.http.post(path, json={"model": MADE, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the events that the made model streams in answer to `body`."""
        answer = await self.http.post(path, json={"model": MADE, "stream": True, **body})
        assert answer.status_code == 200, answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def call(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(f"/api/localllm/{path}", json=body)

    async def states(self) -> dict[str, str]:
        entries = (await self.http.get("/api/localllm/status")).json()["models"]
        return {entry["id"]: entry["state"] for entry in entries}

    @property
    def pids(self) -> dict[str, int | None]:
        return {model.ref.id: model.engine.worker_pid for model in self.models.opened}


@asynccontextmanager
async def serving(
    folder: Path,
    tiny_model: Path,
    *,
    ctx: int = 0,
    total_bytes: int = 20,
    step_ms: int = 2,
    load_ms: int = 0,
    memory: Memory | None = None,
    prefill_ahead: bool = False,
) -> AsyncIterator[Service]:
    for name in (BASE, OTHER):
        place = folder / "data" / "models" / "me" / name
        place.mkdir(parents=True)
        shutil.copy(tiny_model, place / f"{name}.gguf")
    settings = Settings(
        engine="fake",
        data_dir=folder / "data",
        cache_dir=folder / "cache",
        model=BASE,
        ctx=ctx,
        prefill_ahead=prefill_ahead,
    )
    memory = memory or FakeMemory(total_bytes, SIZES)
    models = ModelManager(settings, thread_worker(step_ms=step_ms, load_ms=load_ms), TemplateProcess(), memory)
    path = settings.models_dir / "me" / BASE / f"{BASE}.gguf"
    models.add(ModelRef(BASE, path), read_model_file(path)).load()
    app = create_app(models, JobManager(settings), ShutdownPolicy(is_owned=False), GuardPolicy())
    transport = httpx.ASGITransport(app=app)
    try:
        async with (
            asyncio.timeout(_PATIENCE_S),
            httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=PATIENCE_S) as http,
        ):
            yield Service(models, http, app)
    finally:
        await models.close()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - what a clock or a worker does tells nobody
        await asyncio.sleep(0.005)
