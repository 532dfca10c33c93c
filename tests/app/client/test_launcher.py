from __future__ import annotations

import asyncio
import json
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.client import launcher, service_process
from app.client.launcher import connect, load_model, open_service
from app.client.remote_engine import RemoteEngine
from app.client.service_client import ServiceClient
from app.protocol.chat import AnswerDelta, Completed, GenerationOptions, Message
from app.protocol.errors import ServiceError, UnfitError
from app.protocol.status import ModelStatus
from app.service.server import listen
from app.settings.settings import Settings, load_settings
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import EngineError, UsageError
from quantizer.system.memory_limit import MemoryLimit
from quantizer.system.process import OwnedProcess, is_process_alive
from tests.app.running import RunningService
from tests.patience import PATIENCE_S


@pytest.fixture
def settings(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings under which no service runs."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return load_settings(environment=environment)


def _at(service: RunningService, settings: Settings) -> Settings:
    port = int(service.url.rpartition(":")[2])
    return Settings(port=port, data_dir=settings.data_dir, cache_dir=settings.cache_dir)


@pytest.mark.slow
async def test_it_starts_a_service_that_answers_keeps_a_log_and_ends_with_it(
    settings: Settings, tmp_path: Path
) -> None:
    seen: list[ModelStatus] = []
    async with open_service(replace(settings, cache_dir=tmp_path / "cache")) as client:
        status = await load_model(client, "", seen.append)
        assert (status.id, status.state) == ("tiny", "ready")
        events = [event async for event in client.chat([Message("user", "hello")])]
        pid = (await client.call("GET", "/api/localllm/status"))["models"][0]["worker_pid"]
    assert isinstance(events[-1], Completed)
    assert all(isinstance(event, AnswerDelta) for event in events[:-1])
    assert seen[-1] == status
    assert not is_process_alive(str(pid))
    log = (tmp_path / "cache" / "service.log").read_text()
    assert f"service: {client.base_url}, localllm" in log
    assert "service: tiny.gguf is loaded, with" in log


async def test_a_service_that_ends_before_it_is_ready_is_reported_with_its_last_output(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_process, "_COMMAND", [sys.executable, "-c", "import sys; sys.exit('no socket here')"])
    with pytest.raises(ServiceError, match="ended before it was ready; its last output: no socket here"):
        async with open_service(settings):
            pass
    monkeypatch.setattr(
        "quantizer.system.memory_limit.memory_limits", lambda: (MemoryLimit("ulimit -v", 300 << 20, 0),)
    )
    words = "memory allocation of 176 bytes failed"
    monkeypatch.setattr(service_process, "_COMMAND", [sys.executable, "-c", f"import sys; sys.exit({words!r})"])
    with pytest.raises(EngineError, match="Not enough memory: the service needs more and may use 300 MiB"):
        async with open_service(settings):
            pass


async def test_a_client_that_is_cancelled_while_its_service_starts_leaves_none_behind(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[OwnedProcess]()
    has_left = threading.Event()
    initialise = OwnedProcess.__init__

    def start_and_leave(process: OwnedProcess, *arguments: Any) -> None:
        initialise(process, *arguments)
        started.append(process)
        loop.call_soon_threadsafe(leave)
        assert has_left.wait(PATIENCE_S)

    def leave() -> None:
        entering.cancel()
        has_left.set()

    async def enter() -> None:
        async with open_service(settings):
            pass

    monkeypatch.setattr(OwnedProcess, "__init__", start_and_leave)
    loop = asyncio.get_running_loop()
    entering = asyncio.create_task(enter())
    await asyncio.wait({entering})
    assert entering.cancelled()
    assert started[0]._process.returncode is not None


async def test_a_service_that_was_found_is_used_and_left_running(settings: Settings, service: RunningService) -> None:
    async with open_service(_at(service, settings)) as client:
        assert client.base_url == service.url
        assert (await load_model(client, "")).id == "tiny"
    assert service.http.get("/health").status_code == 200


async def test_a_service_that_stays_for_its_jobs_ends_after_them(settings: Settings, tmp_path: Path) -> None:
    own = replace(settings, data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")
    async with open_service(own) as client:
        job = await client.start_job("quantize", {"source": "guide", "file_type": "Q8_0"})
        await client.stay_until_jobs_end()
        url = client.base_url
    assert await _listens(url), "its job has just begun"
    async with asyncio.timeout(120):
        while await _listens(url):  # noqa: ASYNC110 - other processes send no events
            await asyncio.sleep(0.05)
    ended = json.loads((tmp_path / "data" / "jobs" / f"{job.id}.json").read_text())
    assert (ended["state"], ended["error"]) == ("done", None)


async def test_a_client_that_finds_a_staying_service_keeps_it_running(settings: Settings, tmp_path: Path) -> None:
    own = replace(settings, data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")
    async with AsyncExitStack() as second:
        async with open_service(own) as client:
            port = int(client.base_url.rpartition(":")[2])
            found = await second.enter_async_context(open_service(replace(own, port=port)))
            await client.stay_until_jobs_end()
        assert (await found.status()).stays_until == "jobs-end"
    async with asyncio.timeout(120):
        while await _listens(client.base_url):  # noqa: ASYNC110 - other processes send no events
            await asyncio.sleep(0.05)


async def test_what_the_service_refuses_is_raised_as_itself(settings: Settings, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_text("no model")
    async with open_service(settings, str(broken)) as client:
        with pytest.raises(ModelFileError, match="not a GGUF"):
            await load_model(client, str(broken))
        assert (await load_model(client, "")).id == "guide"  # what is there to talk with meanwhile


@pytest.mark.slow
async def test_a_model_that_fits_in_part_is_loaded_after_a_yes_and_not_before(settings: Settings) -> None:
    asked: list[str] = []

    def answer_with(answer: bool) -> Callable[[UnfitError], bool]:
        def confirm_load(error: UnfitError) -> bool:
            asked.append(error.cause)
            return answer

        return confirm_load

    unfit = replace(settings, engine="fake-unfit", when_unfit="ask")
    async with open_service(unfit) as client:
        with pytest.raises(UnfitError, match="Only 1 of 3 layers fit"):
            await load_model(client, "", when_unfit="ask", confirm_load=answer_with(False))
        assert (await load_model(client, "", when_unfit="ask", confirm_load=answer_with(True))).state == "ready"
    assert asked == ["Only 1 of 3 layers fit."] * 2


async def test_another_program_on_the_port_is_not_taken_for_a_service() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with other:
        port = other.sockets[0].getsockname()[1]
        assert not await launcher._answers(f"http://127.0.0.1:{port}", "")


FACE = """
import asyncio, sys
from app.client.launcher import load_model, open_service
from app.settings.settings import load_settings

async def main():
    async with open_service(load_settings()) as client:
        await load_model(client, "")
        status = await client.call("GET", "/api/localllm/status")
        print(client.base_url, status["models"][0]["worker_pid"], flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""
_LONG = GenerationOptions(max_tokens=400)


@asynccontextmanager
async def _owner(environment: Mapping[str, str]) -> AsyncIterator[tuple[Process, str]]:
    """Run another process that owns a service, and yield it with the URL."""
    face = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", FACE),
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert face.stdout is not None
        yield face, (await face.stdout.readline()).decode().split()[0]
    finally:
        with suppress(ProcessLookupError):
            face.kill()
        await face.wait()


@pytest.mark.slow
@pytest.mark.parametrize("end", [Process.kill, lambda owner: owner.stdin.write(b"quit\n")])
async def test_when_the_owner_ends_the_answer_of_another_client_goes_on_and_that_client_owns_the_service(
    environment: Mapping[str, str], settings: Settings, end: Callable[[Process], object]
) -> None:
    async with _owner(environment) as (owner, url):
        async with open_service(replace(settings, port=int(url.rpartition(":")[2]))) as client:
            answer = client.chat([Message("user", "hello")], options=_LONG)
            await anext(answer)
            end(owner)
            async with asyncio.timeout(120):
                await owner.wait()
            *_, last = [event async for event in answer]
            assert isinstance(last, Completed)
            assert last.n_output_tokens > 100
            assert [event async for event in client.chat([Message("user", "again")])]
        async with asyncio.timeout(120):
            while await _listens(url):  # noqa: ASYNC110 - other processes send no events
                await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_of_clients_that_look_for_a_service_at_once_one_starts_it(settings: Settings) -> None:
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    own = replace(settings, port=port)
    async with AsyncExitStack() as stack:
        clients = await asyncio.gather(*(stack.enter_async_context(open_service(own)) for _ in range(3)))
        assert {client.base_url for client in clients} == {own.url}
        assert (await clients[0].status()).n_attending == 2


@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
@pytest.mark.slow
async def test_a_killed_client_leaves_no_service_and_no_worker(environment: Mapping[str, str]) -> None:
    face = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", FACE), env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert face.stdout is not None
    url, pid = (await face.stdout.readline()).decode().split()
    face.kill()
    await face.wait()
    async with asyncio.timeout(60):
        while is_process_alive(pid) or await _listens(url):  # noqa: ASYNC110 - other processes send no events
            await asyncio.sleep(0.05)


async def _listens(url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    except OSError:
        return False
    writer.close()
    return True


async def test_another_localllm_is_distinguished_from_any_other_engine(service: RunningService) -> None:
    async with connect(f"{service.url}/v1", "") as client:
        assert isinstance(client, ServiceClient)
        assert (await load_model(client, "")).id == "tiny"


async def test_an_engine_that_is_not_ours_answers_too(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_ours(_url: str, _key: str) -> bool:
        return False

    monkeypatch.setattr(launcher, "_answers", is_ours)
    async with connect(service.url, "") as engine:
        assert isinstance(engine, RemoteEngine)
        model = await load_model(engine, "")
        events = [event async for event in engine.chat([Message("user", "hello")], model.id)]
    assert isinstance(events[-1], Completed)
    assert events[-1].n_output_tokens > 0


async def test_what_is_no_address_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="not an address"):
        async with connect("far:8000", ""):
            pass
