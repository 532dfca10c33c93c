"""Targets of measurements: a model in a service of its own, or a server at an address; and one measured turn.

Owns starting and cleaning up. The work is `app.bench.workloads`'s.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from app.bench.client import BenchClient
from app.bench.workloads import measured_text
from app.client.launcher import load_model, open_service
from app.common.keys import own_key
from app.protocol.errors import ServiceError
from app.protocol.status import ModelStatus
from app.settings.settings import Settings
from quantizer.system.temporary_folder import temporary_folder

_READY_TIMEOUT_S = 30.0
# Measurements of this machine that the service under measurement needs too.
_KEPT_FILES = ("selftest.json", "tune.json")


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """An OpenAI-compatible server: its address without /v1, the model (empty: its first) and the key."""

    url: str
    model: str = ""
    api_key: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A server that is ready. `n_ctx` is the length of its context in tokens, 0 if unknown."""

    label: str
    model: str
    client: BenchClient
    n_ctx: int = 0


@asynccontextmanager
async def open_model(model: str, settings: Settings, on_status: Callable[[ModelStatus], None]) -> AsyncIterator[Target]:
    """Yield `model` in a service of its own, which ends with this context and keeps no cache. Raises the error of a
    failed load."""
    with _temporary_cache(settings.cache_dir) as cache_dir:
        own = replace(settings, host="127.0.0.1", port=0, model=model, cache_dir=cache_dir)
        async with open_service(own) as service:
            status = await load_model(service, model, on_status)
            async with BenchClient(service.base_url, status.id, settings.api_key) as client:
                yield Target(status.id, status.id, client, status.n_ctx)


@asynccontextmanager
async def open_server(server: RemoteServer) -> AsyncIterator[Target]:
    """Yield the server at an address. Raises ServiceError if it does not answer."""
    async with BenchClient(server.url, server.model, server.api_key) as client:
        model = await client.wait_ready(_READY_TIMEOUT_S)
        yield Target(server.url, model, client)


@contextmanager
def _temporary_cache(cache_dir: Path) -> Iterator[Path]:
    with temporary_folder("bench") as folder:
        for name in _KEPT_FILES:
            with suppress(OSError):  # there is none, or it cannot be read
                shutil.copy(cache_dir / name, folder)
        try:
            yield folder
        finally:
            from app.engine.load.run_history import RunHistory

            # the speeds of the answers count like any others
            RunHistory(cache_dir).add(RunHistory(folder).records())


_N_PROMPT, _N_ANSWER = 512, 48


@dataclass(frozen=True, slots=True)
class TurnTiming:
    """Seconds of waiting behind `n_ahead` answers, and tokens a second."""

    queue_s: float
    n_ahead: int
    prefill_tps: float
    decode_tps: float


async def measure_turn(model: str, settings: Settings, on_status: Callable[[ModelStatus], None]) -> TurnTiming:
    """Request one answer of `model`, from the running service or a temporary one. Raises the error of a failure."""
    async with open_service(settings, model) as service:
        status = await load_model(service, model, on_status)
        async with BenchClient(service.base_url, status.id, own_key(settings)) as client:
            prose = await measured_text(client, secrets.randbits(32))
            now = (await service.status()).model(status.id)
            prompt = prose.tokens(min(_N_PROMPT, status.n_ctx // 2))
            answer = await client.complete(prompt, _N_ANSWER, temperature=0.8, seed=prose.seed(), ignore_eos=True)
    occupancy = now.occupancy if now else None
    n_ahead = occupancy.n_running + occupancy.n_waiting if occupancy else 0
    if not answer.prefill_rate:
        raise ServiceError("The service reported no prefill speed.", "Update the running service.")
    computing_s = (answer.n_prompt - answer.n_cached) / answer.prefill_rate
    return TurnTiming(max(0.0, answer.first_token_s - computing_s), n_ahead, answer.prefill_rate, answer.decode_rate)
