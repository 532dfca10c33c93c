"""Whose service a client uses: impostors on the port, other users and data folders, and what remains of former ones."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from app.client import launcher, own_service
from app.client.launcher import load_model, open_service, running_service, stop_services
from app.client.own_service import OwnServiceTransport
from app.client.service_client import ServiceClient
from app.common.service_identity import IDENTITY_PATH, ServiceIdentity
from app.protocol.chat import Completed, Message
from app.protocol.errors import ForeignServiceError, ServiceError
from app.settings.settings import Settings, load_settings
from tests.app.running import RunningService

Handler = Callable[[bytes], Awaitable[bytes]]  # from the head of a request to the answer


@pytest.fixture
def settings(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Settings of a user with folders of his own, under which no service runs."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return replace(
        load_settings(environment=environment),
        data_dir=tmp_path / "data",
        cache_dir=tmp_path / "cache",
        api_key="llm-1",
    )


class Impostor:
    """Another program on a port, which keeps everything that it was sent."""

    def __init__(self, handle: Handler) -> None:
        self.heard = b""
        self.port = 0
        self._handle = handle
        self._answering: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[Impostor]:
        async with await asyncio.start_server(self._answer, "127.0.0.1", port) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield self
            for task in self._answering:
                task.cancel()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heard += head
                writer.write(await self._handle(head))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self.heard += getattr(error, "partial", b"")
        finally:
            self._answering.discard(task)
            writer.close()


def _response(body: object, status: str = "200 OK", headers: str = "") -> bytes:
    text = json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(text)}\r\n\r\n".encode() + text


def _answering(answer: bytes) -> Handler:
    async def handle(_head: bytes) -> bytes:
        return answer

    return handle


_STATUS = {"version": "0.1.0", "default_model": "x", "models": [], "stays_until": "", "n_attending": 0}
_ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"8\r\n--------\r\n" * 600
# What a client may wait for the rest of.
_UNFINISHED = (b"HTTP/1.0 200 OK\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


@pytest.mark.parametrize(
    "answer",
    [
        _response({"proof": "0" * 64}),
        _response({"proof": ""}),
        _response({"proof": None}),
        _response({**_STATUS, "proof": "0" * 64}),
        _response({"error": "not found"}, "404 Not Found"),
        _response({"proof": "0" * 64}, headers="Connection: close\r\n"),
        _response([]),
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\xff\xfe{",
        b"\x00" * 70_000,
        _ENDLESS,
        *_UNFINISHED,
    ],
)
async def test_an_impostor_gets_neither_key_nor_prompt_and_the_command_a_service_of_its_own(
    settings: Settings, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer in _UNFINISHED:
        monkeypatch.setattr(own_service, "_PROOF_TIMEOUT_S", 0.2)
    ServiceIdentity.create(settings)
    async with Impostor(_answering(answer)).listening() as impostor:
        own = replace(settings, port=impostor.port)
        async with ServiceClient(own.url, own.api_key, OwnServiceTransport(ServiceIdentity(own))) as client:
            with pytest.raises(ForeignServiceError, match=f"listens at {own.url}"):
                await client.status()
            with pytest.raises(ServiceError):
                [event async for event in client.chat([Message("user", "my secret is 4711")])]
    assert impostor.heard.startswith(b"GET " + IDENTITY_PATH.encode())
    for secret in (b"my secret", settings.api_key.encode(), (settings.data_dir / "service.key").read_bytes(), b"POST"):
        assert secret not in impostor.heard


async def test_a_program_that_never_answers_is_not_waited_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_service, "_PROOF_TIMEOUT_S", 0.2)

    async def silent(_head: bytes) -> bytes:
        await asyncio.sleep(60)
        return b""

    async with Impostor(silent).listening() as impostor:
        own = replace(settings, port=impostor.port)
        with pytest.raises(ForeignServiceError, match="Another program listens"):
            async with running_service(own):
                pass


async def test_a_command_that_wants_the_port_of_an_unused_service_waits_for_no_silent_program(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_service, "_PROOF_TIMEOUT_S", 600)
    monkeypatch.setattr(launcher, "_PROBE_TIMEOUT_S", 0.2)

    async def silent(_head: bytes) -> bytes:
        await asyncio.sleep(600)
        return b""

    async with Impostor(silent).listening() as impostor, asyncio.timeout(60):
        assert await stop_services(replace(settings, port=impostor.port), if_unused=True) == []


async def test_the_proof_of_the_real_service_cannot_be_passed_on(
    settings: Settings, environment: Mapping[str, str], service: RunningService
) -> None:
    """An impostor on the usual port asks the real service, which runs on another one."""
    real_port = int(service.url.rpartition(":")[2])

    async def relay(head: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", real_port)
        writer.write(head)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length:")[2].split()[0])
        answer += await reader.readexactly(length)
        writer.close()
        return answer

    real = load_settings(environment=environment)
    async with running_service(replace(real, port=real_port)) as client:
        assert (await client.status()).models
    async with Impostor(relay).listening() as impostor:
        with pytest.raises(ForeignServiceError):
            async with running_service(replace(real, port=impostor.port)):
                pass
    assert impostor.heard.count(b"HTTP/1.1") == 1


async def test_an_impostor_that_takes_the_port_of_a_killed_service_gets_nothing(settings: Settings) -> None:
    async with open_service(settings) as client:
        await load_model(client, "")
        port = int(client.base_url.rpartition(":")[2])
        pid = int(next((settings.cache_dir).glob("in-use-*")).name.removeprefix("in-use-"))
        os.kill(pid, 9)
        async with asyncio.timeout(120):
            while True:
                try:
                    async with Impostor(_answering(_response(_STATUS))).listening(port) as impostor:
                        with pytest.raises(ServiceError):
                            [event async for event in client.chat([Message("user", "my secret is 4711")])]
                        with pytest.raises(ForeignServiceError):
                            await client.status()
                    break
                except OSError:  # the port is not free yet
                    await asyncio.sleep(0.05)
    assert b"my secret" not in impostor.heard
    assert settings.api_key.encode() not in impostor.heard


@pytest.mark.slow
async def test_where_another_one_has_the_port_the_next_command_finds_the_service_that_the_first_started(
    settings: Settings, service: RunningService
) -> None:
    """The shared service of the tests has another data folder."""
    own = replace(settings, port=int(service.url.rpartition(":")[2]))
    with pytest.raises(ForeignServiceError, match="The localllm of another user or data folder listens at"):
        async with running_service(own):
            pass
    n_before = service.n_output_tokens()
    async with open_service(own) as client:
        (notice,) = client.notices
        assert notice == (
            f"The localllm of another user or data folder listens at {own.url}. "
            f"Your own service runs at {client.base_url}."
        )
        await load_model(client, "")
        *_, last = [event async for event in client.chat([Message("user", "hello")])]
        assert isinstance(last, Completed)
        for find in (open_service, running_service):
            async with find(own) as second:
                assert (second.base_url, second.notices) == (client.base_url, ())
    assert service.n_output_tokens() == n_before
    with pytest.raises(ForeignServiceError):
        async with running_service(own):
            pass
    assert not [*settings.data_dir.glob("service-*.json")]


@pytest.mark.slow
async def test_a_service_at_another_port_that_cannot_be_noted_says_that_others_will_not_find_it(
    settings: Settings, service: RunningService
) -> None:
    own = replace(settings, port=int(service.url.rpartition(":")[2]))
    for path in ServiceIdentity(own)._record_paths():
        path.mkdir(parents=True)  # no file can take its place, as on a full disk
    async with open_service(own) as client:
        port = client.base_url.rpartition(":")[2]
        assert client.notices[1] == (
            f"Other commands will not find the service at port {port}, which can be noted neither in "
            f"{own.data_dir} nor in {own.cache_dir}. Free some space there and start it again, or set "
            f"LOCALLLM_PORT={port} for them."
        )
        async with running_service(replace(own, port=int(port))) as second:
            assert second.base_url == client.base_url
    assert f"Other commands will not find the service at port {port}" in (own.cache_dir / "service.log").read_text()


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_record_that_a_killed_service_left_does_no_harm(
    settings: Settings, service: RunningService, is_taken: bool
) -> None:
    own = replace(settings, port=int(service.url.rpartition(":")[2]))
    async with Impostor(_answering(_response({"proof": "0" * 64}))).listening() as impostor:
        port = impostor.port
        recorded = ServiceIdentity.create(own).recording(port)
        recorded.__enter__()  # and never left, as by a kill
        if is_taken:
            async with open_service(own) as client:
                assert client.notices
                assert client.base_url not in (own.url, f"http://127.0.0.1:{port}")
    if not is_taken:
        async with open_service(own) as client:
            assert client.notices
    assert b"POST" not in impostor.heard


@pytest.mark.slow
async def test_of_commands_that_meet_a_foreign_service_at_once_one_starts_the_service_of_all(
    settings: Settings, service: RunningService
) -> None:
    own = replace(settings, port=int(service.url.rpartition(":")[2]))
    urls = []

    async def use() -> None:
        async with open_service(own) as client:
            urls.append(client.base_url)
            await is_everybody_there.wait()

    is_everybody_there = asyncio.Barrier(3)
    await asyncio.gather(use(), use(), use())
    assert len(set(urls)) == 1
    assert urls[0] != own.url


async def test_a_service_of_another_version_is_not_used(
    settings: Settings, environment: Mapping[str, str], service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = replace(load_settings(environment=environment), port=int(service.url.rpartition(":")[2]))
    monkeypatch.setattr(launcher, "__version__", "99.0.0")
    with pytest.raises(ForeignServiceError, match=r"localllm .* runs at http.* Run `localllm stop` first\."):
        async with running_service(shared):
            pass


async def test_a_key_is_not_enough_for_another_user(
    environment: Mapping[str, str], service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who could read it, as in a home on a network, listens on the port."""
    monkeypatch.setattr(own_service, "listening_users", lambda _host, _port: frozenset({4711}))
    shared = replace(load_settings(environment=environment), port=int(service.url.rpartition(":")[2]))
    with pytest.raises(ForeignServiceError):
        async with running_service(shared):
            pass


@pytest.mark.slow
async def test_where_no_key_can_be_kept_a_command_uses_the_service_that_it_started(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("no folder")
    settings.cache_dir.mkdir()
    (settings.cache_dir / "service.key").mkdir()  # a folder in its place
    async with open_service(replace(settings, api_key="")) as client:
        assert (await load_model(client, "")).state == "ready"


@pytest.mark.parametrize("challenge", ["", "0", "g" * 64, "0" * 65, "A" * 64])
def test_a_challenge_of_another_form_is_refused(service: RunningService, challenge: str) -> None:
    assert service.http.get(IDENTITY_PATH, params={"challenge": challenge}).status_code == 400


@pytest.mark.slow
def test_the_proof_needs_no_key_and_quotes_none(start_service: Callable[..., RunningService]) -> None:
    guarded = start_service(api_key="sesame")
    guarded.http.headers.pop("authorization")
    answer = guarded.http.get(IDENTITY_PATH, params={"challenge": "0" * 64})
    assert answer.status_code == 200
    assert answer.json().keys() == {"proof"}
    assert guarded.http.get("/api/localllm/status").status_code == 401
