from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from app.cli.main import main
from app.engine.messages import EngineConfig
from app.protocol.errors import ServiceError
from app.service import server
from app.service.http import connections
from app.service.http.guard import Guard, GuardPolicy
from app.service.pool.engine_client import EngineClient
from app.service.server import listen
from app.service.starting import OperatorPrompt
from quantizer.system.process import is_process_alive, python_command
from tests.app.cli.in_process import run_localllm
from tests.app.running import RunningService
from tests.app.service.listening import listening
from tests.app.thread_worker import thread_worker
from tests.patience import PATIENCE_S

Serve = Callable[..., tuple[int | str | None, str]]


@pytest.fixture
def serve(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Serve:
    """`localllm serve` in this process, for what ends it before it serves: its status and stderr."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def serve(*flags: str) -> tuple[int | str | None, str]:
        with pytest.raises(SystemExit) as leaving:
            main(["serve", *flags])
        printed = capsys.readouterr()
        assert printed.out == ""
        return leaving.value.code, printed.err

    return serve


def test_a_port_in_use_ends_the_command_before_a_model_is_read(serve: Serve) -> None:
    with listen("127.0.0.1", 0) as first:
        status, errors = serve("--port", str(first.getsockname()[1]), "--model", "nope.gguf")
    assert status == 1
    assert "is in use" in errors


@pytest.mark.parametrize(
    ("flags", "status", "words"), [(("--model", "nope"), 1, "no model 'nope'"), (("--port", "70000"), 2, "70000")]
)
def test_invalid_settings_end_with_a_sentence(serve: Serve, flags: tuple[str, ...], status: int, words: str) -> None:
    ended, errors = serve(*flags)
    assert ended == status
    assert words in errors


def test_a_broken_model_is_refused_before_listening(serve: Serve, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_text("This is a text file.")
    status, errors = serve("--model", str(broken))
    assert status == 1
    assert "broken.gguf is not a GGUF file" in errors


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_announces_its_address_and_stops_cleanly(environment: Mapping[str, str], number: signal.Signals) -> None:
    command = python_command("app.cli.main", "serve")
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "localllm serves tiny on http://127.0.0.1:" in line
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_other_commands_find_a_service_that_got_its_port_by_a_flag(environment: Mapping[str, str]) -> None:
    with socket.socket() as unused:  # it does not listen: nothing does where the settings say
        unused.bind(("127.0.0.1", 0))
        usual = {**environment, "LOCALLLM_PORT": str(unused.getsockname()[1])}
        command = python_command("app.cli.main", "serve", "--port", "0")
        with subprocess.Popen(
            command, env=usual, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert "localllm serves tiny on" in process.stdout.readline()
            found = run_localllm(usual, "ps")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE_S)
        lost = run_localllm(usual, "ps")
    assert (found.returncode, found.stderr) == (0, "")
    assert "tiny" in found.stdout
    assert lost.returncode == 1


async def test_nothing_is_reported_on_a_model_that_the_end_of_the_service_stops_loading() -> None:
    notices = list[str]()
    engine = EngineClient(Path("tiny.gguf"), EngineConfig(n_ctx=64), thread_worker(load_ms=2000))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await engine.stop()

    with listen("127.0.0.1", 0) as listener:
        config = server._config(Starlette(lifespan=lifespan), connections.ConnectionLimits())
        ending = server._Server(config, lambda: ending.end())
        await server._serve_while_loading(ending, [listener], engine, OperatorPrompt(notices.append, lambda _: False))
    assert (engine.status.state, notices) == ("failed", [])


@pytest.mark.slow
@pytest.mark.usefixtures("real_processes")
def test_a_service_whose_owner_is_gone_before_it_listens_ends(environment: Mapping[str, str]) -> None:
    command = python_command("app.cli.main", "serve", "--owned")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        process.stdin = process.stdout = None
        try:
            _, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert all(" service: " in line for line in errors.splitlines()), "only its events are in the log"


async def test_the_key_is_checked_before_any_route() -> None:
    guarded = httpx.ASGITransport(app=Guard(_hello, GuardPolicy(api_key="sesame")))
    async with httpx.AsyncClient(transport=guarded, base_url="http://localhost") as client:
        refused = await client.get("/nope")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert (await client.get("/nope", headers={"x-api-key": "sesame"})).text == "hi"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
def test_a_killed_service_leaves_no_worker_behind(start_service: Callable[..., RunningService]) -> None:
    service = start_service()
    worker_pid = service.model()["worker_pid"]
    os.kill(service.process.pid, signal.SIGKILL)
    assert service.process.wait(timeout=PATIENCE_S) == -signal.SIGKILL
    deadline_s = time.monotonic() + 30
    while is_process_alive(str(worker_pid)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not is_process_alive(str(worker_pid))


async def _hello(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"hi"})


async def _answer_or_reset(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_a_connection_that_sends_no_whole_header_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.2)
    async with listening(_hello) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: loc")
        async with asyncio.timeout(60):
            assert await _answer_or_reset(reader) == b""
        writer.close()


async def test_a_kept_connection_may_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.2)
    async with listening(_hello) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" in await reader.readline()
            await reader.readuntil(b"hi")
            await asyncio.sleep(0.3)
        writer.close()
        await writer.wait_closed()


async def test_invalid_http_after_a_body_is_refused_once(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(_hello) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert (await reader.read()).count(b"HTTP/1.1 400") == 1
        writer.close()
    assert "Exception" not in caplog.text


def test_listening_on_ipv6_loopback_works_where_it_exists() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listener = listen("::1", 0)
    except ServiceError as error:
        pytest.skip(str(error))
    with listener:
        assert listener.getsockname()[0] == "::1"


@pytest.mark.slow
def test_the_service_starts_without_numpy_or_native_code() -> None:
    code = "import sys, app.service.application, app.service.server; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert not {"numpy", "llama_cpp", "gguf"} & set(done.stdout.split())
