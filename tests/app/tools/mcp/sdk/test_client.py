"""Servers of the official package, in this process and over HTTP: listed, called, cancelled, and read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.tools.approval import ApprovalQuestion, Decision
from app.tools.mcp.config import ServerConfig, ToolError, config_of
from app.tools.mcp.connection import Observer
from app.tools.mcp.server import McpServer
from app.tools.server_requests import Form, FormValue, SampledText, SamplingRequest, ServerRequests
from app.tools.tool import CallContext, ServerTool, ToolProgress

pytest.importorskip("mcp", reason="the optional extra")

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import Context, MCPServer


class Notes:
    """A server of notes, and what happened on it."""

    def __init__(self) -> None:
        self.was_cancelled = asyncio.Event()
        self.is_waiting = asyncio.Event()
        self.headers: list[str] = []

    def server(self) -> MCPServer:
        server = MCPServer("notes", version="1.2")

        @server.tool()
        async def search(q: str, ctx: Context[Any]) -> str:
            """Search notes."""
            await ctx.report_progress(1, 2, "half\x1b[2J")
            return f"found {q}"

        @server.tool()
        async def wait() -> str:
            """Wait forever."""
            self.is_waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.was_cancelled.set()
                raise
            return ""

        @server.tool()
        async def fail() -> str:
            """Fail."""
            raise ValueError("no such note")

        @server.tool()
        async def large() -> str:
            """Return more than a message may have."""
            return "x" * (17 << 20)

        @server.resource("note://1")
        def note() -> str:
            """A note."""
            return "the note"

        @server.prompt()
        def review(what: str) -> str:
            """Review something."""
            return f"Review {what}."

        return server


def in_process(server: MCPServer | Server[Any]) -> McpServer:
    """Return a server that is reached without streams."""
    from app.tools.mcp.sdk.client import connect_to

    def connect(_config: ServerConfig, observer: Observer) -> Any:
        return connect_to(server, observer)

    return McpServer("notes", config_of("notes", {"command": "unused"}), "mcp.json", connect)


def by_name(tools: tuple[ServerTool, ...]) -> dict[str, ServerTool]:
    return {tool.name: tool for tool in tools}


async def check_all(server: McpServer, notes: Notes) -> None:
    """Check what every transport has to carry."""
    tools = by_name(await server.tools())
    assert tools["search"].definition.name == "notes__search"
    assert tools["search"].definition.parameters["required"] == ["q"]
    heard: list[ToolProgress] = []
    output = await server.call(tools["search"], {"q": "a"}, CallContext(on_progress=heard.append))
    assert (output.text, output.is_error) == ("found a", False)
    assert heard == [ToolProgress("half[2J", 1, 2)]

    output = await server.call(tools["fail"], {}, CallContext())
    assert output.is_error
    assert "no such note" in output.text or "Error executing" in output.text

    output = await server.call(tools["search"], {}, CallContext())
    assert output.is_error

    call = asyncio.create_task(server.call(tools["wait"], {}, CallContext()))
    await notes.is_waiting.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await notes.was_cancelled.wait()

    assert server.status().resources == ("note://1",)
    assert server.status().prompts == ("review",)
    assert await server.resource("note://1") == "the note"
    assert await server.prompt("review", "this") == "Review this."
    assert server.info is not None
    assert (server.info.name, server.info.version) == ("notes", "1.2")


async def test_a_server_in_this_process_works() -> None:
    notes = Notes()
    server = in_process(notes.server())
    try:
        await check_all(server, notes)
    finally:
        await server.close()


class Person:
    """Someone who allows everything, and whose chat fills every form in alike."""

    def __init__(self) -> None:
        self.n_forms = 0

    async def ask(self, question: ApprovalQuestion) -> Decision:
        return Decision.ONCE

    async def fill(self, form: Form) -> Mapping[str, FormValue]:
        self.n_forms += 1
        return {"name": "Ada"}

    async def sample(self, request: SamplingRequest) -> SampledText:
        raise NotImplementedError


@pytest.mark.parametrize(("n_rounds", "text", "n_forms"), [(1, "Hello Ada", 1), (99, "has asked 5 times already", 5)])
async def test_a_server_of_the_later_protocol_asks_by_its_results(n_rounds: int, text: str, n_forms: int) -> None:
    form = types.ElicitRequestFormParams(
        message="Who?", requested_schema={"type": "object", "properties": {"name": {"type": "string"}}}
    )
    n_asked = 0

    async def list_tools(*_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="greet", input_schema={"type": "object"})])

    async def call_tool(
        _context: object, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        nonlocal n_asked
        if n_asked < n_rounds:
            n_asked += 1
            return types.InputRequiredResult(input_requests={"who": types.ElicitRequest(params=form)})
        assert params.input_responses is not None
        answer = params.input_responses["who"]
        assert isinstance(answer, types.ElicitResult)
        content = types.TextContent(type="text", text=f"Hello {(answer.content or {})['name']}")
        return types.CallToolResult(content=[content])

    server = in_process(Server("greeter", on_list_tools=list_tools, on_call_tool=call_tool))
    person = Person()
    requests = ServerRequests(person, person, (), nullcontext)
    (tool,) = await server.tools()
    output = await server.call(tool, {}, CallContext(requests=requests))
    assert text in output.text
    assert person.n_forms == n_forms
    assert server.info is not None
    assert server.info.protocol_version == "2026-07-28"
    await server.close()


async def test_a_resource_that_is_not_there_is_said() -> None:
    server = in_process(Notes().server())
    with pytest.raises(ToolError, match=r"The server answers:"):
        await server.resource("note://2")
    await server.close()


@asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[str]:
    """Serve `app` on a free port of this machine; yield where it is."""
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listener.close()


def at(url: str, **entry: object) -> McpServer:
    config = config_of("notes", {"url": url, **entry})
    assert not config.problem
    return McpServer("notes", config, "mcp.json")


@pytest.mark.slow
@pytest.mark.parametrize("json_response", [False, True])
async def test_a_server_over_http_works(*, json_response: bool) -> None:
    notes = Notes()
    async with served(notes.server().streamable_http_app(json_response=json_response)) as url:
        server = at(f"{url}/mcp")
        try:
            if json_response:
                tools = by_name(await server.tools())
                assert (await server.call(tools["search"], {"q": "a"}, CallContext())).text == "found a"
            else:
                await check_all(server, notes)
            output = await server.call(by_name(await server.tools())["large"], {}, CallContext())
            assert output.is_error
            assert len(output.text) < 1_000
        finally:
            await server.close()


async def test_a_server_of_the_former_http_form_is_found_without_being_told() -> None:
    notes = Notes()
    async with served(notes.server().sse_app()) as url:
        server = at(f"{url}/sse")
        try:
            tools = by_name(await server.tools())
            assert (await server.call(tools["search"], {"q": "a"}, CallContext())).text == "found a"
        finally:
            await server.close()


async def test_headers_reach_the_server_with_their_variables_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES_TOKEN", "abc")
    seen: list[str] = []

    async def refuse(request: Request) -> Response:
        seen.append(request.headers.get("authorization", ""))
        return Response(status_code=401)

    async with served(Starlette(routes=[Route("/mcp", refuse, methods=["GET", "POST"])])) as url:
        server = at(f"{url}/mcp", headers={"Authorization": "Bearer ${NOTES_TOKEN}"})
        with pytest.raises(ToolError, match=r"answers 401.*Put its token into `headers`"):
            await server.tools()
        await server.close()
    assert set(seen) == {"Bearer abc"}


async def test_an_address_where_nobody_is_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = at(f"http://127.0.0.1:{port}/mcp")
    with pytest.raises(ToolError, match=r"cannot be reached"):
        await server.tools()
    await server.close()


async def test_an_address_that_is_no_server_says_so() -> None:
    async with served(Starlette()) as url:
        server = at(f"{url}/mcp")
        with pytest.raises(ToolError, match=r"cannot be started"):
            await server.tools()
        await server.close()


async def test_a_compressed_answer_is_refused() -> None:
    async def bomb(_request: object) -> Response:
        return Response(b"\x1f\x8b", headers={"content-encoding": "gzip"}, media_type="application/json")

    async with served(Starlette(routes=[Route("/mcp", bomb, methods=["POST"])])) as url:
        server = at(f"{url}/mcp")
        with pytest.raises(ToolError, match=r"compressed"):
            await server.tools()
        await server.close()


async def test_a_server_that_is_gone_in_a_call_is_said_and_reached_again_later() -> None:
    notes = Notes()
    async with served(notes.server().streamable_http_app()) as url:
        server = at(f"{url}/mcp")
        tools = by_name(await server.tools())
        call = asyncio.create_task(server.call(tools["wait"], {}, CallContext()))
        await notes.is_waiting.wait()
    assert (await call).is_error
    with pytest.raises(ToolError, match=r"ended during the call: it cannot be reached"):
        await server.call(tools["search"], {"q": "a"}, CallContext())
    with pytest.raises(ToolError, match=r"cannot be started\. It cannot be reached"):
        await server.call(tools["search"], {"q": "a"}, CallContext())
    await server.close()
