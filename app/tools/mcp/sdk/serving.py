"""Our tools served to other programs through the official package `mcp`: over standard streams, or over HTTP.

Over HTTP the service's own guard stands before it: Host, Origin, key and whose process asks. What these tools read is
the person's, so a key needs the scope `manage`.
"""

from __future__ import annotations

import sys
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp

from app import __version__
from app.common.terminal import printable_line
from app.service.http.guard import Guard, policy_of
from app.settings.settings import Settings
from app.tools.mcp.offered import MAX_SOUND_BYTES, OfferedTools
from quantizer.system.errors import UserError

PATH = "/mcp"
_MAX_BODY_BYTES = MAX_SOUND_BYTES * 4 // 3 + (1 << 20)  # base64, and what is around it
_MAX_SESSIONS = 64


def server_of(tools: OfferedTools) -> Server[Any]:
    async def list_tools(
        context: ServerRequestContext[Any],  # noqa: ARG001
        params: types.PaginatedRequestParams | None,  # noqa: ARG001
    ) -> types.ListToolsResult:
        reads = types.ToolAnnotations(read_only_hint=True)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=dict(tool.parameters),
                    annotations=reads,
                )
                for tool in await tools.tools()
            ]
        )

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        async def report(message: str, done: float, total: float | None) -> None:
            await context.session.report_progress(done, total, message)

        try:
            text = await tools.call(params.name, params.arguments or {}, report)
        except UserError as error:
            return types.CallToolResult(content=[types.TextContent(type="text", text=str(error))], is_error=True)
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    return Server("localllm", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


async def serve_stdio(settings: Settings) -> None:
    """Serve the program that started this process, until it closes our input."""
    server = server_of(OfferedTools(settings, "path"))
    async with stdio_server() as (reads, writes):
        await server.run(reads, writes, server.create_initialization_options())


def http_app(settings: Settings) -> ASGIApp:
    """Return the application at `PATH`. Raises StorageError and UsageError as `policy_of`."""
    app = server_of(OfferedTools(settings, "data")).streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=_MAX_BODY_BYTES,
        max_sessions=_MAX_SESSIONS,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the guard checks Host
    )
    return Guard(app, policy_of(settings))


async def serve_http(settings: Settings, port: int) -> None:
    """Serve at `port` of the host of the settings until the process is ended."""
    config = uvicorn.Config(
        http_app(settings), host=settings.host, port=port, log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    print(printable_line(f"http://{settings.host}:{port}{PATH}"), file=sys.stderr, flush=True)
    await server.serve()
