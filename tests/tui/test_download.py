"""A download in the app: started, stopped, resumed, left running, and found finished.

The real service in its own process, with jobs and the test hub; only the engine is fake.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.connection import ServiceConnection, local_service
from app.settings.settings import Settings
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.quantizer.gguf_files import tiny_llama
from tui.app import LocalllmApp

pytestmark = pytest.mark.slow

N_BYTES = 3 << 20
BYTES_PER_S = 384 << 10  # eight seconds: a busy machine is to see it run


@pytest.fixture
def slow_hub(tmp_path, monkeypatch):
    """A hub with one model, which takes a while to come."""
    tiny = tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    large = tiny + bytes(N_BYTES - len(tiny))
    with HubServer(HubRepo.of("org/large-GGUF", {"large-Q8_0.gguf": large})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN", "")
        hub.bytes_per_s = BYTES_PER_S
        yield hub


@pytest.fixture
def settings(tmp_path):
    """Those of a service that the next app finds again: its port is known."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return Settings(engine="fake", port=port, data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


async def test_a_download_is_stopped_resumed_left_running_and_found_finished(settings, slow_hub, user_of):
    @asynccontextmanager
    async def open_app() -> AsyncIterator:
        async with ServiceConnection(local_service(settings), settings.model) as connection:
            app = LocalllmApp(connection, settings=settings)
            async with app.run_test(size=(120, 40), notifications=True) as pilot:
                user = user_of(pilot)
                await user.sees("guide  ● ready")
                yield user

    async with open_app() as user:
        await user.presses("f6", "slash")
        await user.types("large")
        await user.sees("org/large-GGUF")
        await user.presses("enter", "enter")
        await user.sees("Downloading", "B/s")
        await user.presses("x")
        await user.sees("Stopped. Partial data is kept")
        await user.presses("f8")
        await user.sees("cancelled")
        await user.presses("r")
        await user.sees("running", "B/s")
        await user.presses("ctrl+q")
        await user.sees("Quit; the jobs continue until they finish")
        await user.presses("enter")
        await user.leaves()
    assert not list(settings.models_dir.glob("*/*/*.gguf"))

    async with open_app() as user:
        await user.presses("f8")
        await user.sees("Fetch org/large-GGUF", "done")
        await user.presses("f6")
        await user.sees("large:q8_0")
    (fetched,) = settings.models_dir.glob("*/*/*.gguf")
    assert fetched.stat().st_size == N_BYTES
    assert slow_hub.n_sent() < 1.5 * N_BYTES  # what came before the stop was kept
