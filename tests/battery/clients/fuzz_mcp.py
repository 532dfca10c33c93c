"""Talks to MCP servers whose every message may be damaged, and looks for what is neither a result nor a clear error.

    uv run python tests/battery/clients/fuzz_mcp.py [--servers 500] [--seed 1]

Each server answers a few rounds of requests over the package's own client, with random damage to its JSON, messages
that nobody asked for, and sudden ends. Fails the run where a use of it raises anything but a UserError, goes on far
beyond its limits, shows a control character, or leaves a task behind or an exception that nobody saw. Seeded; needs the
extra `mcp`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio

from app.common.terminal import printable_line
from app.tools.mcp.config import ServerConfig, config_of
from app.tools.mcp.connection import Connection, Observer
from app.tools.mcp.lifecycle import DEFAULT_LIMITS
from app.tools.mcp.sdk.client import connect_to
from app.tools.mcp.sdk.transports import Watch, read_message
from app.tools.mcp.server import McpServer
from app.tools.tool import CallContext
from quantizer.system.errors import UserError
from tests.battery.tally import finish

_N_ROUNDS, _N_AT_ONCE = 4, 20
_LIMITS = replace(DEFAULT_LIMITS, start_s=0.3, list_s=0.3, alive_s=0.1, roots_s=0.05, settle_s=0.0, retry_s=0.0)
_LIMITS = replace(_LIMITS, max_deaths=1_000)
_USE_S, _CLOSE_S = 30.0, 30.0  # far beyond the limits: only what hangs takes so long
_JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1e308, float("nan"), 2**70, "", "x", "\x1b[2J", "a" * 5_000, [], {}, [[]], {"a": {}}),
    *({"type": "text"}, {"type": "text", "text": 5}, {"type": "image"}, ["text"], {"$ref": "http://x"}),
    *({"type": "resource_link", "uri": "::"}, {"code": 1}, {"code": -32000, "message": "Connection closed"}),
)
_KEYS = (
    *("type", "text", "result", "error", "id", "method", "params", "name", "$ref", "nextCursor", "isError"),
    *("structuredContent", "resultType", "inputSchema", "outputSchema", "\x1b]0;x\x07"),
)
_ABOUT = {"name": "n\x1b[2J", "version": "1"}
_CAPABILITIES = {"tools": {"listChanged": True}, "prompts": {}, "resources": {}}
_TOOL = {
    "name": "call",
    "description": "d\x9b31m",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}}},
    "annotations": {"title": "t\u202e"},
}
_CONTENT = (
    {"type": "text", "text": "t"},
    {"type": "image", "data": "aaaa", "mimeType": "image/png"},
    {"type": "resource_link", "uri": "a://b", "name": "x"},
    {"type": "resource", "resource": {"uri": "a://b", "text": "x"}},
)
_LATER = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_RESULTS: dict[str, Any] = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": _CAPABILITIES, "serverInfo": _ABOUT},
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": _CAPABILITIES, **_LATER},
    "tools/list": {"tools": [_TOOL], **_LATER},
    "prompts/list": {"prompts": [{"name": "p", "arguments": [{"name": "a", "required": True}]}], **_LATER},
    "resources/list": {"resources": [{"uri": "a://b", "name": "n", "mimeType": "text/plain"}], **_LATER},
    "tools/call": {"content": list(_CONTENT), "structuredContent": {"a": 1}, "isError": False, **_LATER},
    "prompts/get": {"messages": [{"role": "user", "content": _CONTENT[0]}], **_LATER},
    "resources/read": {"contents": [{"uri": "a://b", "text": "x"}, {"uri": "a://c", "blob": "aaaa"}], **_LATER},
}
_FORM = {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}
_UNASKED: tuple[dict[str, Any], ...] = (
    {"method": "notifications/progress", "params": {"progressToken": 3, "progress": 1, "message": "m\x1b[2J"}},
    {"method": "notifications/tools/list_changed"},
    {"method": "notifications/message", "params": {"level": "info", "data": "x"}},
    {"method": "notifications/cancelled", "params": {"requestId": 3}},
    {"id": "s", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}},
    {"id": "e", "method": "elicitation/create", "params": _FORM},
    {"id": "r", "method": "roots/list"},
    {"id": "p", "method": "ping"},
)


def damaged(value: Any, chance: random.Random) -> Any:
    """Return JSON like `value`, with parts left out, added, doubled or replaced."""
    if chance.random() < 0.12:
        return chance.choice(_JUNK)
    if isinstance(value, dict):
        kept = {key: damaged(item, chance) for key, item in value.items() if chance.random() > 0.04}
        return kept | ({chance.choice(_KEYS): chance.choice(_JUNK)} if chance.random() < 0.08 else {})
    if isinstance(value, list):
        return [damaged(item, chance) for item in value] * chance.choice((1, 1, 1, 2))
    return value


@asynccontextmanager
async def scripted(chance: random.Random) -> AsyncIterator[Any]:
    """Yield the streams of a server, which damages some part of its messages."""
    share = chance.choice((0.05, 0.3, 0.8))
    inbound_send, inbound = anyio.create_memory_object_stream[Any](0)
    outbound, outbound_receive = anyio.create_memory_object_stream[Any](0)

    async def send(message: dict[str, Any]) -> None:
        whole = {"jsonrpc": "2.0", **message}
        line = json.dumps(damaged(whole, chance) if chance.random() < share else whole).encode()
        if (item := read_message(line)) is not None:
            await inbound_send.send(item)

    async def serve() -> None:
        async with inbound_send, outbound_receive:
            async for item in outbound_receive:
                for _ in range(chance.randrange(3)):
                    await send(chance.choice(_UNASKED))
                asked = json.loads(item.message.model_dump_json(by_alias=True, exclude_unset=True))
                if chance.random() < 0.03:
                    return
                if "id" in asked and "method" in asked:
                    await send({"id": asked["id"], "result": _RESULTS.get(asked["method"], {})})

    async def run() -> None:
        try:
            await serve()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    async with anyio.create_task_group() as tasks, inbound, outbound:
        tasks.start_soon(run)
        try:
            yield inbound, outbound
        finally:
            tasks.cancel_scope.cancel()


async def use(seed: str, tally: Counter[str]) -> list[str]:
    """Use the server of a seed, count what came of each use, and return its faults."""
    chance = random.Random(seed)
    faults: list[str] = []

    def connect(_config: ServerConfig, observer: Observer) -> AbstractAsyncContextManager[Connection]:
        mode = chance.choice(("legacy", "legacy", "auto"))
        return connect_to(scripted(chance), Watch(observer), mode)

    config = config_of("s", {"command": "unused", "timeout_s": 0.3})
    server = McpServer("s", config, "mcp.json", connect, _LIMITS)

    async def call() -> None:
        for tool in await server.tools():
            shown = (tool.name, tool.title, tool.definition.name, " ".join(tool.definition.description.split()))
            faults.extend(f"{seed}: not printable: {text!r}" for text in shown if text != printable_line(text))
            try:
                async with asyncio.timeout(0.3):
                    await server.call(tool, {"a": "x"}, CallContext())
            except TimeoutError:
                return

    uses: tuple[Callable[[], Awaitable[object]], ...] = (
        server.tools, call, server.prompts, server.resources,
        lambda: server.resource("a://b"), lambda: server.prompt("p", "a=b"),
    )  # fmt: skip
    for each in uses * _N_ROUNDS:
        try:
            async with asyncio.timeout(_USE_S):
                await each()
            tally["a result"] += 1
        except UserError:
            tally["an error that says why"] += 1
        except Exception:
            faults.append(f"{seed}: {traceback.format_exc()}")
    async with asyncio.timeout(_CLOSE_S):
        await server.close()
    return faults


async def run(n_servers: int, chance: random.Random) -> int:
    """Use that many servers, print each fault, and return how many there were."""
    unseen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unseen.append(repr(context)))
    tally: Counter[str] = Counter()
    faults: list[str] = []
    for begin in range(0, n_servers, _N_AT_ONCE):
        seeds = [str(chance.random()) for _ in range(min(_N_AT_ONCE, n_servers - begin))]
        for found in await asyncio.gather(*(use(seed, tally) for seed in seeds)):
            faults += found
        gc.collect()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        faults += [f"a task is left: {task!r}" for task in left]
    faults += [f"nobody saw: {each}" for each in unseen]
    for fault in faults:
        print(fault, flush=True)
    for what, count in tally.most_common():
        print(f"{count:6}  {what}")
    return len(faults)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    n_faults = asyncio.run(run(options.servers, random.Random(options.seed)))
    finish(options.servers, n_faults, options.seed)


if __name__ == "__main__":
    main()
