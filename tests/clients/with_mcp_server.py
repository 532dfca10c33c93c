"""A reference server of the Model Context Protocol, used as a chat uses it: listed, called, cancelled, read, stopped.

Prints how long it took to start, to list and to call. The server is the one that CLIENT_NAME names.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from app.tools.mcp.config import config_of
from app.tools.mcp.lifecycle import sdk_connect
from app.tools.mcp.server import McpServer
from app.tools.tool import CallContext, ServerTool, ToolOutput, ToolProgress

_N_CALLS = 5


class Trial:
    """A server with the folder that it works on."""

    def __init__(self, server: McpServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.tools: dict[str, ServerTool] = {}
        self.progress: list[ToolProgress] = []
        self.has_progress = asyncio.Event()

    def _note(self, progress: ToolProgress) -> None:
        self.progress.append(progress)
        self.has_progress.set()

    async def call(self, name: str, **arguments: object) -> ToolOutput:
        context = CallContext(folders=(self.folder,), on_progress=self._note)
        return await self.server.call(self.tools[name], arguments, context)

    async def text(self, name: str, **arguments: object) -> str:
        """Return the text of a call that must succeed."""
        output = await self.call(name, **arguments)
        assert not output.is_error, output.text
        return output.text


async def use_filesystem(trial: Trial) -> Callable[[], Awaitable[object]]:
    file = trial.folder / "ünder score.txt"
    await trial.text("write_file", path=str(file), content="one\ntwo\n")
    assert file.read_text("utf-8") == "one\ntwo\n"
    assert "ünder score.txt" in await trial.text("list_directory", path=str(trial.folder))
    outside = await trial.call("read_text_file", path="/etc/passwd")
    assert outside.is_error
    assert "root:" not in outside.text
    # the folders of the chat take the place of those before
    other = trial.folder / "other"
    await trial.text("create_directory", path=str(other))
    context = CallContext(folders=(other,))
    output = await trial.server.call(trial.tools["read_text_file"], {"path": str(file)}, context)
    assert output.is_error, output.text
    return lambda: trial.text("read_text_file", path=str(file))


async def use_everything(trial: Trial) -> Callable[[], Awaitable[object]]:
    status = trial.server.status()
    assert len(status.prompts) >= 3, status
    assert len(status.resources) >= 5, status
    assert await trial.server.resource(status.resources[0])
    assert "city" in str(await trial.server.prompts())
    assert "weather" in await trial.server.prompt("args-prompt", "city=Bern state=BE")
    await trial.text("trigger-long-running-operation", duration=0.3, steps=3)
    assert [step.done for step in trial.progress] == [1, 2, 3], trial.progress
    assert "image/png" in await trial.text("get-tiny-image")
    assert "[resource: demo://" in await trial.text("get-resource-links", count=2)
    assert '"temperature"' in await trial.text("get-structured-content", location="New York")
    assert str(trial.folder) in await trial.text("get-roots-list")
    environment = await trial.text("get-env")
    assert "secret of ours" not in environment
    assert "for the server" in environment

    trial.has_progress.clear()
    long = asyncio.create_task(trial.call("trigger-long-running-operation", duration=600, steps=6000))
    await trial.has_progress.wait()
    long.cancel()
    assert isinstance((await asyncio.gather(long, return_exceptions=True))[0], asyncio.CancelledError)
    assert await trial.text("echo", message="still here") == "Echo: still here"
    return lambda: trial.text("echo", message="a")


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = self.path == "/page"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        if found:
            self.wfile.write(b"<html><body><h1>A page</h1><p>of this machine</p></body></html>")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


async def use_fetch(trial: Trial) -> Callable[[], Awaitable[object]]:
    pages = HTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{pages.server_port}/page"
    assert "of this machine" in await trial.text("fetch", url=url)
    assert "of this machine" in await trial.server.prompt("fetch", url)
    assert (await trial.call("fetch", url=url.replace("page", "missing"))).is_error
    return lambda: trial.text("fetch", url=url)


def make_repository(folder: Path) -> None:
    for words in (("init", "-q"), ("config", "user.email", "a@b"), ("config", "user.name", "a")):
        subprocess.run(["git", "-C", str(folder), *words], check=True)


async def use_git(trial: Trial) -> Callable[[], Awaitable[object]]:
    await asyncio.to_thread(make_repository, trial.folder)
    (trial.folder / "a.txt").write_text("a", encoding="utf-8")
    where = str(trial.folder)
    await trial.text("git_add", repo_path=where, files=["a.txt"])
    await trial.text("git_commit", repo_path=where, message="Add a file")
    assert "Add a file" in await trial.text("git_log", repo_path=where)
    return lambda: trial.text("git_status", repo_path=where)


async def use_time(trial: Trial) -> Callable[[], Awaitable[object]]:
    converted = await trial.text(
        "convert_time", source_timezone="Asia/Tokyo", time="12:00", target_timezone="Asia/Kolkata"
    )
    assert "08:30" in converted, converted
    assert (await trial.call("get_current_time", timezone="Nowhere/Land")).is_error
    return lambda: trial.text("get_current_time", timezone="Europe/Zurich")


@dataclass(frozen=True, slots=True)
class Reference:
    """A server, its arguments, and what is tried with it."""

    use: Callable[[Trial], Awaitable[Callable[[], Awaitable[object]]]]
    args: tuple[str, ...] = ()
    module: str = ""  # of one in Python


REFERENCES = {
    "mcp-filesystem": Reference(use_filesystem),
    "mcp-everything": Reference(use_everything),
    "mcp-fetch": Reference(use_fetch, ("--allow-private-ips",), "mcp_server_fetch"),
    "mcp-git": Reference(use_git, (), "mcp_server_git"),
    "mcp-time": Reference(use_time, ("--local-timezone=UTC",), "mcp_server_time"),
}


def entry(reference: Reference) -> dict[str, object]:
    """Return the entry of mcp.json for a server that was installed where CLIENT_FOLDER says."""
    if not reference.module:
        return {"command": os.environ["CLIENT_COMMAND"], "args": list(reference.args), "env": {"OWN": "for the server"}}
    environment = {"PYTHONPATH": os.environ["CLIENT_FOLDER"]}
    return {"command": sys.executable, "args": ["-m", reference.module, *reference.args], "env": environment}


async def main() -> None:
    name = os.environ["CLIENT_NAME"]
    reference = REFERENCES[name]
    os.environ["OPENAI_API_KEY"] = os.environ["LOCALLLM_API_KEY"] = "secret of ours"
    await sdk_connect()
    with tempfile.TemporaryDirectory() as folder:
        server = McpServer("reference", config_of("reference", entry(reference)), "mcp.json")
        trial = Trial(server, Path(os.path.realpath(folder)))  # noqa: ASYNC240 - nothing else runs
        begun_s = time.perf_counter()
        tools = await server.tools()
        started_s = time.perf_counter() - begun_s
        assert tools, server.status()
        assert not server.status().problem, server.status()
        trial.tools = {tool.name: tool for tool in tools}
        call = await reference.use(trial)
        server.changed()
        begun_s = time.perf_counter()
        await server.tools()
        listed_s = time.perf_counter() - begun_s
        begun_s = time.perf_counter()
        for _ in range(_N_CALLS):
            await call()
        called_s = (time.perf_counter() - begun_s) / _N_CALLS
        await server.close()
        assert server.status().state == "stopped"
        info = server.info
        assert info is not None
    figures = {"started_s": round(started_s, 3), "listed_ms": round(listed_s * 1e3, 1)}
    figures["called_ms"] = round(called_s * 1e3, 1)
    print(name, info.version, info.protocol_version, f"{len(tools)} tools", json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main())
