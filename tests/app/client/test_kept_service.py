"""A service that stays for the next command: who finds it, what ends it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.client import launcher
from app.client.launcher import load_model, open_service, running_service, stop_services
from app.common.service_identity import STOP_PATH, ServiceIdentity, new_challenge
from app.protocol.chat import Completed, GenerationOptions, Message
from app.protocol.errors import RequestError, ServiceError
from app.settings.settings import Settings, load_settings, service_digest
from quantizer.system.process import is_process_alive, python_command
from tests.app.running import RunningService


async def _process(settings: Settings) -> str:
    """Return the number of the process of the running service."""
    (mark,) = settings.cache_dir.glob("in-use-*")
    return mark.name.removeprefix("in-use-")


async def test_the_next_command_finds_the_service_of_the_first_with_its_model(settings: Settings) -> None:
    async with open_service(settings, keeps=True) as client:
        await load_model(client, "")
        assert client.kept_for == "10m"
        url = client.base_url
    async with running_service(settings) as client:
        for _ in range(3000):  # a thread of it notices that its owner has gone
            if (status := await client.status()).is_unused:
                break
            await asyncio.sleep(0.01)
        assert (status.is_unused, status.n_attending, status.models[0].state) == (True, 0, "ready")
    process = await _process(settings)
    async with open_service(settings, keeps=True) as client:
        assert (client.base_url, client.kept_for) == (url, "")
        assert not (await client.status()).is_unused
    assert await _process(settings) == process
    assert await stop_services(settings) == [url]
    assert not is_process_alive(process)
    assert await stop_services(settings) == []
    with pytest.raises(ServiceError, match="No localllm service answers"):
        async with running_service(settings):
            pass


@pytest.mark.parametrize(("keep_service", "keeps"), [("0", True), ("10m", False)])
async def test_a_service_that_is_not_to_stay_ends_with_its_command(
    settings: Settings, keep_service: str, keeps: bool
) -> None:
    async with open_service(replace(settings, keep_service=keep_service), keeps=keeps) as client:
        assert client.kept_for == ""
        process = await _process(settings)
    assert not is_process_alive(process)


async def test_it_ends_by_itself_after_its_time(settings: Settings) -> None:
    async with open_service(replace(settings, keep_service="1s"), keeps=True):
        process = await _process(settings)
    async with asyncio.timeout(60):
        while is_process_alive(process):  # noqa: ASYNC110 - other processes send no events
            await asyncio.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_it_holds_no_folder_no_terminal_and_no_pipe_of_the_command(settings: Settings) -> None:
    async with open_service(settings, keeps=True) as client:
        await load_model(client, "")
        process = await _process(settings)
    for each in (found := psutil.Process(int(process)), *found.children(recursive=True)):
        assert each.cwd() == "/"
    assert psutil.Process(int(process)).terminal() is None
    assert os.getsid(int(process)) == int(process), "no Ctrl-C or hang-up of the terminal reaches it"
    assert not _pipes(process) & _pipes("self")


def _pipes(process: str) -> set[str]:
    targets = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # of the listing itself
            targets.add(str(link.readlink()))
    return {target for target in targets if target.startswith("pipe:")}


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ({"parallel": 3}, False),
        ({"ctx": 777}, False),
        ({"idle_tune": False}, False),
        ({"keep_service": "5m"}, True),
        ({"when_unfit": "load"}, True),
        ({"system": "Be brief."}, True),
    ],
)
async def test_a_command_with_other_settings_gets_a_service_that_has_them(
    settings: Settings, change: dict[str, Any], is_found: bool
) -> None:
    async with open_service(settings, keeps=True):
        process = await _process(settings)
    async with open_service(replace(settings, **change), keeps=True) as client:
        assert client.base_url == settings.url
        assert client.notices == ()
        assert (await _process(settings) == process) == is_found
    assert is_process_alive(process) == is_found


async def test_a_service_in_use_serves_commands_with_other_settings_too(settings: Settings) -> None:
    async with open_service(settings, keeps=True) as first, open_service(replace(settings, ctx=777)) as second:
        assert first.base_url == second.base_url


async def test_one_of_an_older_version_gives_way(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_service(settings, keeps=True):
        process = await _process(settings)
    monkeypatch.setattr(launcher, "__version__", "99.0.0")
    async with open_service(settings) as client:
        assert client.base_url == settings.url
    assert not is_process_alive(process)


async def test_stopping_lets_running_answers_finish(settings: Settings) -> None:
    async with open_service(settings, keeps=True) as client:
        answer = client.chat([Message("user", "hello")], options=GenerationOptions(max_tokens=200))
        await anext(answer)
        stopping = asyncio.create_task(stop_services(settings))
        *_, last = [event async for event in answer]
        assert isinstance(last, Completed)
        assert last.n_output_tokens > 100
        assert await stopping == [settings.url]


async def test_a_service_in_use_is_not_ended_for_another_one(settings: Settings) -> None:
    async with open_service(settings, keeps=True) as client:
        assert await stop_services(settings, if_unused=True) == []
        assert (await client.status()).models


async def test_the_service_of_another_user_is_not_ended(settings: Settings, service: RunningService) -> None:
    foreign = replace(settings, port=int(service.url.rpartition(":")[2]))
    assert await stop_services(foreign) == []
    assert service.http.get("/health").status_code == 200


@pytest.mark.parametrize("statement", ["end the service", "this is the service"])
async def test_only_a_proof_ends_a_service(
    settings: Settings, service: RunningService, environment: Mapping[str, str], statement: Any
) -> None:
    own = ServiceIdentity.create(settings)
    if statement == "this is the service":
        own = ServiceIdentity(load_settings(environment=environment))
    challenge = new_challenge()
    body = {"challenge": challenge, "proof": own.proof(statement, challenge)}
    refused = service.http.post(STOP_PATH, json=body)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "not_the_owner"
    assert service.http.get("/health").status_code == 200


async def test_a_service_with_another_key_can_be_stopped_by_its_owner(settings: Settings) -> None:
    async with open_service(replace(settings, api_key="sesame"), keeps=True):
        process = await _process(settings)
    with pytest.raises(RequestError, match="API key"):
        async with launcher._client(settings, ServiceIdentity(settings)) as client:
            await client.status()
    assert await stop_services(settings) == [settings.url]
    assert not is_process_alive(process)


async def test_of_several_services_all_are_stopped(settings: Settings, service: RunningService) -> None:
    """One is at the port of the settings' and another at the recorded one."""
    foreign = replace(settings, port=int(service.url.rpartition(":")[2]))
    async with open_service(foreign, keeps=True) as client:
        url = client.base_url
    assert await stop_services(foreign) == [url]


def test_a_digest_tells_settings_of_the_service_apart_and_no_others() -> None:
    digest = service_digest(Settings())
    for change in ({"theme": "x"}, {"model": "other"}, {"port": 1}, {"api_key": "secret"}):
        assert service_digest(replace(Settings(), **change)) == digest, change  # type: ignore[arg-type]
    for change in ({"ctx": 1}, {"gpu": False}, {"kv_type": "q8_0"}, {"engine": "fake"}, {"threads": 3}):
        assert service_digest(replace(Settings(), **change)) != digest, change  # type: ignore[arg-type]


@pytest.mark.slow
async def test_serve_takes_the_port_of_a_service_that_nobody_uses(
    settings: Settings, environment: Mapping[str, str], start_command: Callable[..., Any]
) -> None:
    async with open_service(settings, keeps=True):
        process = await _process(settings)
    folders = {"LOCALLLM_DATA_DIR": str(settings.data_dir), "LOCALLLM_CACHE_DIR": str(settings.cache_dir)}
    async with start_command({**environment, **folders}, "serve", "--port", str(settings.port)) as (serving, line):
        assert f"on {settings.url}" in line
        assert not is_process_alive(process)
        serving.terminate()
        await serving.wait()


@pytest.fixture
def start_command() -> Callable[..., Any]:
    @asynccontextmanager
    async def start(environment: Mapping[str, str], *arguments: str) -> AsyncIterator[Any]:
        process = await asyncio.create_subprocess_exec(
            *python_command("app.cli.main", *arguments), env=environment, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            yield process, (await process.stdout.readline()).decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    return start


@pytest.mark.slow
async def test_forgetting_ends_the_service_that_nobody_uses(settings: Settings, environment: Mapping[str, str]) -> None:
    async with open_service(settings, keeps=True):
        process = await _process(settings)
    folders = {"LOCALLLM_DATA_DIR": str(settings.data_dir), "LOCALLLM_CACHE_DIR": str(settings.cache_dir)}
    own = {**environment, **folders, "LOCALLLM_PORT": str(settings.port)}
    command = python_command("app.cli.main", "forget", "--yes")
    forgetting = await asyncio.create_subprocess_exec(*command, env=own, stdout=asyncio.subprocess.DEVNULL)
    assert await forgetting.wait() == 0
    assert not is_process_alive(process)
