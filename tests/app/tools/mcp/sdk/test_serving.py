"""Our tools over the protocol: by standard streams, and over HTTP behind the guard of the service."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.common.keys import KeyScope, key_file
from app.settings.settings import Settings
from app.tools.mcp.config import config_of
from app.tools.mcp.offered import OfferedTools, Report
from app.tools.mcp.server import McpServer
from app.tools.tool import CallContext, ToolProgress
from quantizer.system.errors import UsageError
from tests.patience import PATIENCE_S

pytest.importorskip("mcp", reason="the optional extra")

import httpx2

from app.tools.mcp.sdk import serving


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Let no tool run; return the arguments of their calls."""
    made: list[Mapping[str, Any]] = []

    async def answer(_self: object, name: str, arguments: Mapping[str, Any], report: Report) -> str:
        if name != "ask":
            raise UsageError("It can't.", "Try another.")
        made.append(arguments)
        await report("writing", 1, None)
        return "an answer"

    monkeypatch.setattr(OfferedTools, "call", answer)
    return made


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[str]:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(serving.http_app(settings), log_config=None, timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{serving.PATH}"
    finally:
        server.should_exit = True
        await running
        listener.close()


def at(url: str, key: str = "") -> McpServer:
    headers = {"headers": {"Authorization": f"Bearer {key}"}} if key else {}
    return McpServer("localllm", config_of("localllm", {"url": url, **headers}), "mcp.json")


async def check(server: McpServer, calls: list[Mapping[str, Any]]) -> None:
    tools = {tool.name: tool for tool in await server.tools()}
    heard: list[ToolProgress] = []
    output = await server.call(tools["ask"], {"prompt": "Hello?"}, CallContext(on_progress=heard.append))
    assert (output.text, output.is_error) == ("an answer", False)
    assert calls[-1] == {"prompt": "Hello?"}
    assert heard == [ToolProgress("writing", 1, None)]
    output = await server.call(tools["embed"], {"texts": ["a"], "model": "b"}, CallContext())
    assert (output.text, output.is_error) == ("It can't. Try another.", True)
    await server.close()


async def test_tools_are_listed_and_called_over_http(settings: Settings, calls: list[Mapping[str, Any]]) -> None:
    async with served(settings) as url:
        await check(at(url), calls)


@pytest.mark.slow
async def test_a_key_needs_the_scope_that_reads_what_is_the_persons(
    settings: Settings, calls: list[Mapping[str, Any]]
) -> None:
    settings = replace(settings, api_key="configured")
    keys = key_file(settings)
    infers = keys.add("infers", frozenset({KeyScope.INFER}))
    manages = keys.add("manages", frozenset({KeyScope.MANAGE}))
    async with served(settings) as url:
        await check(at(url, manages.secret), calls)
        for key, status in (("", 401), ("wrong", 401), (infers.secret, 403)):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
                assert (await client.post(url, headers=headers, json={})).status_code == status


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
async def test_a_web_page_reaches_nothing(settings: Settings, headers: dict[str, str]) -> None:
    async with served(settings) as url, httpx2.AsyncClient(timeout=PATIENCE_S) as client:
        assert (await client.post(url, headers=headers, json={})).status_code == 403


@pytest.mark.slow
async def test_the_command_serves_standard_streams_and_ends_with_them(tmp_path: Path) -> None:
    environment = {"LOCALLLM_DATA_DIR": str(tmp_path), "LOCALLLM_CACHE_DIR": str(tmp_path)}
    command = {"command": sys.executable, "args": ["-m", "app.cli.main", "mcp", "serve"], "env": environment}
    server = McpServer("localllm", config_of("localllm", command), "mcp.json")
    tools = {tool.name: tool for tool in await server.tools()}
    output = await server.call(tools["search_chats"], {"query": "anything"}, CallContext())
    assert output.text == "No chat matches."
    await server.close()
