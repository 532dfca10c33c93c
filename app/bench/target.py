"""What is measured: a model under a service of its own, or whatever answers at an address.

Owns getting one ready and leaving nothing of it behind. Knows nothing of the work.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from app.bench.client import Client
from app.client import ModelStatus
from app.launcher import load_model, open_service
from app.settings import Settings

__all__ = ["OtherServer", "Target", "open_model", "open_server"]

_READY_TIMEOUT_S = 30.0
# What was learned of this machine, which a service under measurement is to know too.
_KEPT_FILES = ("selftest.json", "tune.json")


@dataclass(frozen=True, slots=True)
class OtherServer:
    """An OpenAI-compatible server: its address without /v1, the model wanted (empty: its first) and its key."""

    url: str
    model: str = ""
    api_key: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A server that is ready. `n_ctx` is how many tokens its context holds, 0 where it does not say."""

    label: str
    model: str
    client: Client
    n_ctx: int = 0


@asynccontextmanager
async def open_model(model: str, settings: Settings, on_status: Callable[[ModelStatus], None]) -> AsyncIterator[Target]:
    """Give `model` under a service of its own, which ends with this context and keeps nothing of what it computed.

    Raises what makes loading fail.
    """
    with _cache_for_once(settings.cache_dir) as cache_dir:
        own = replace(settings, host="127.0.0.1", port=0, model=model, cache_dir=cache_dir)
        async with open_service(own) as service:
            status = await load_model(service, model, on_status)
            async with Client(service.base_url, status.id, settings.api_key) as client:
                yield Target(status.id, status.id, client, status.n_ctx)


@asynccontextmanager
async def open_server(server: OtherServer) -> AsyncIterator[Target]:
    """Give the server at an address, which is left as it is. Raises ServiceError when it does not answer."""
    async with Client(server.url, server.model, server.api_key) as client:
        model = await client.wait_ready(_READY_TIMEOUT_S)
        yield Target(server.url, model, client)


@contextmanager
def _cache_for_once(cache_dir: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="localllm-bench-", ignore_cleanup_errors=True) as folder:
        for name in _KEPT_FILES:
            if (cache_dir / name).is_file():
                shutil.copy(cache_dir / name, folder)
        try:
            yield Path(folder)
        finally:
            _keep_runs(Path(folder), cache_dir)


def _keep_runs(measured_dir: Path, cache_dir: Path) -> None:
    """Keep how fast answers came: they are as good as any that people ask for."""
    from app.engine.rates import run_history

    run_history(cache_dir).add(run_history(measured_dir).records())
