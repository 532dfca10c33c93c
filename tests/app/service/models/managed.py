"""Four models of an in-process service over the fake engine: two of them fit together, one never does."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from app.engine.chat_template.template_process import TemplateProcess
from app.library.local.model_files import ModelRef
from app.service.application import create_app
from app.service.http.guard import GuardPolicy
from app.service.jobs.manager import JobManager
from app.service.models.manager import ModelManager
from app.service.models.model_file import read_model_file
from app.service.shutdown_policy import ShutdownPolicy
from app.settings.settings import Settings
from tests.app.service.pool.memory_fake import FakeMemory
from tests.app.thread_worker import thread_worker
from tests.patience import PATIENCE_S

__all__ = ["CODER", "CODER_STEM", "SIZES", "WORDS", "calling", "library_settings", "managing", "states"]

CODER, CODER_STEM = "qwen2.5-coder:7b-q4_K_M", "Qwen2.5-Coder-7B-Q4_K_M"
SIZES = {"first": 10, "second": 10, "third": 10, "large": 50}
WORDS: dict[str, Any] = {"prompt": "hello", "max_tokens": 3}


def library_settings(folder: Path, model: Path) -> Settings:
    """Return settings with a library in `folder`: copies of `model`, the first of which is the default."""
    for name in SIZES:
        own = folder / "data" / "models" / "me" / name
        own.mkdir(parents=True)
        shutil.copy(model, own / f"{name}.gguf")
    return Settings(engine="fake", data_dir=folder / "data", cache_dir=folder / "cache", model="first")


@asynccontextmanager
async def managing(
    settings: Settings, *, load_ms: float = 0.0, total_bytes: int = 20, max_n_ctx: int = 1 << 30, **sizes: int
) -> AsyncIterator[ModelManager]:
    """The models of a service that begins with the first one; `sizes` are those of further files."""
    models = ModelManager(
        settings,
        thread_worker(load_ms=load_ms),
        TemplateProcess(),
        FakeMemory(total_bytes, {**SIZES, CODER_STEM: 10, **sizes}, max_n_ctx),
    )
    path = settings.models_dir / "me" / "first" / "first.gguf"
    models.add(ModelRef("first", path), read_model_file(path)).load()
    try:
        async with asyncio.timeout(120):  # of a busy machine
            yield models
    finally:
        await models.close()


def calling(models: ModelManager) -> httpx.AsyncClient:
    """Return a client of every route over `models`."""
    transport = httpx.ASGITransport(
        app=create_app(models, JobManager(models.settings), ShutdownPolicy(is_owned=False), GuardPolicy())
    )
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=PATIENCE_S)


def states(models: ModelManager) -> dict[str, str]:
    """Return the state of each model's engine."""
    return {model.ref.id: model.engine.status.state for model in models.opened}
