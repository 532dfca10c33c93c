"""The app over a real service process with the fake engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
from textual.pilot import Pilot

from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.client.service_client import ServiceClient
from app.connection import ServiceConnection, local_service
from app.settings.settings import Settings
from quantizer.gguf.gguf_reader import ModelFileError
from tests.app.child_processes import children_that_run, living_children
from tests.app.sound.fake_device_child import put_device
from tests.patience import PATIENCE_S
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_projectors import hearing_header
from tests.quantizer.gguf_speakers import tiny_speaker
from tui.app import LocalllmApp

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_processes")]
_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    model = tiny_llama(
        tmp_path / "tiny.gguf",
        lambda writer: writer.add_chat_template(_TEMPLATE),
    )
    return Settings(engine="fake", port=0, model=str(model), data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


def _worker() -> psutil.Process:
    return _running("app.engine.worker")


def _service() -> psutil.Process:
    return _running("app.cli.main")


def _running(module: str) -> psutil.Process:
    """The youngest of its kind: those of other tests may not have ended yet."""
    return max(children_that_run(module), key=psutil.Process.create_time)


async def _question_reaches_the_worker(connection: ServiceConnection, pilot: Pilot[None]) -> None:
    client = await connection.client()
    assert isinstance(client, ServiceClient)
    async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(base_url=client.base_url, trust_env=False) as http:
        while (await http.get("/api/localllm/status")).json()["models"][0]["n_running"] == 0:
            await pilot.pause(0.01)


async def test_a_chat_stops_survives_a_dead_worker_and_leaves_nothing_running(settings, user_of):
    before = set(living_children())
    connection = ServiceConnection(local_service(settings), settings.model)
    async with connection, LocalllmApp(connection).run_test(size=(80, 24)) as pilot:
        user = user_of(pilot)
        await user.sees("ready", " of ")
        worker = _worker()
        worker.suspend()
        await user.asks("Hello there")
        await _question_reaches_the_worker(connection, pilot)
        await user.presses("escape")
        await user.sees("stopped", "ready")
        worker.resume()
        await user.presses("ctrl+r")
        await user.sees("a second", "ready")

        worker.suspend()
        await user.asks("/new")
        await user.asks("Hello again")
        await _question_reaches_the_worker(connection, pilot)
        worker.kill()
        await user.sees("No answer", "Ctrl+R retries.", "ready")
        await user.presses("ctrl+r")
        await user.no_longer_sees("No answer")
        await user.sees("a second", "ready")
        assert worker != _worker()
    assert set(living_children()) <= before


async def test_a_service_that_is_killed_while_nobody_asks_it_anything_is_there_again_by_itself(settings, user_of):
    connection = ServiceConnection(local_service(settings), settings.model)
    app = LocalllmApp(connection, settings=settings)
    async with connection, app.run_test(size=(80, 24), notifications=True) as pilot:
        user = user_of(pilot)
        await user.sees("ready")
        await user.presses("f9")
        _service().kill()
        await user.presses("f6")
        await user.sees("Lost the service:")
        await user.presses("escape", "escape")  # the notification, then the screen
        await user.sees("ready")
        await user.asks("Hello there")
        await user.sees("a second", "ready")


async def test_reasoning_is_separated_by_the_service(settings, tmp_path, user_of):
    template = "{% for message in messages %}{{ message.content }}{% endfor %}</think><think>"
    model = tiny_llama(tmp_path / "thinker.gguf", lambda writer: writer.add_chat_template(template))
    connection = ServiceConnection(local_service(settings), str(model))
    async with connection, LocalllmApp(connection, settings=settings).run_test(size=(80, 24)) as pilot:
        user = user_of(pilot)
        await user.asks("Hello there")
        await user.sees("▸ thought for", "tokens", "ready")


async def test_an_idle_service_names_the_chat_after_its_first_answer(settings, tmp_path, user_of):
    def title() -> str:
        with ChatStore(tmp_path) as store:
            return store.chats.page()[0].title

    connection = ServiceConnection(local_service(settings), settings.model)
    async with SqliteChatRepository(tmp_path) as repository, connection:
        app = LocalllmApp(connection, repository, settings=settings)
        async with app.run_test(size=(80, 24)) as pilot:
            user = user_of(pilot)
            await user.asks("Hello there")
            await user.sees("a second", "ready")
            await user.until(lambda: title() != "Hello there", "the chat got no title")


async def test_missing_model_is_reported_and_another_can_be_chosen(settings, tmp_path, user_of):
    missing = str(tmp_path / "missing.gguf")
    connection = ServiceConnection(local_service(replace(settings, model=missing)), missing)
    async with connection, LocalllmApp(connection, settings=settings).run_test(size=(100, 30)) as pilot:
        user = user_of(pilot)
        await user.sees("No answer", "missing.gguf", "F6 lists local models", "not available")
        assert isinstance(connection.state.error, ModelFileError)
        await user.presses("f6")
        await user.sees("guide", "enter chat")
        await user.presses("enter")
        await user.sees("guide  ● ready")
        await user.presses("f2")
        await user.sees("a second")


async def test_a_job_of_the_service_is_followed_to_its_end_and_announced(settings, user_of):
    connection = ServiceConnection(local_service(settings), settings.model)
    async with connection, LocalllmApp(connection, settings=settings).run_test(size=(120, 40)) as pilot:
        user = user_of(pilot)
        await user.sees("ready")
        await user.presses("f8")
        client = await connection.service()
        assert isinstance(client, ServiceClient)
        await client.start_job("eval", {"model": str(settings.data_dir / "missing.gguf")})
        await user.sees("missing.gguf", "There is no file", "1 failed")
        await user.presses("x")
        await user.sees("No jobs.")


async def test_what_is_said_is_written_down_and_an_answer_read_aloud_by_models_of_the_library(
    settings, user_of, monkeypatch
):
    library = settings.data_dir / "models" / "me"
    tiny_speaker(library / "talker", "qwen3tts")
    (library / "hearing").mkdir()
    tiny_llama(library / "hearing" / "hearing.gguf", lambda writer: writer.add_chat_template(_TEMPLATE))
    hearing_header(library / "hearing" / "mmproj-hearing.gguf")
    connection = ServiceConnection(local_service(settings), settings.model)
    async with connection, LocalllmApp(connection, settings=settings).run_test(size=(120, 30)) as pilot:
        user = user_of(pilot)
        await user.sees("ready")
        put_device(monkeypatch, "tone")
        await user.presses("alt+r")
        await user.sees("recording · 1:01")
        await user.presses("enter")
        await user.until(lambda: user.app.screen.prompt.text, "nothing was written down")
        await user.presses("enter")
        await user.sees("a second", "ready")
        put_device(monkeypatch, "slow")
        await user.asks("/speak")
        await user.sees("reading aloud · esc stop")
        await user.presses("escape")
        await user.no_longer_sees("reading aloud ·")
