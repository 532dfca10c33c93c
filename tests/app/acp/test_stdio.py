"""The lines of an editor: messages, rubbish, too much, and their end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from app.acp.stdio import StdioTransport


@asynccontextmanager
async def _opened(max_bytes: int = 1 << 17) -> AsyncIterator[tuple[StdioTransport, int, int]]:
    """Yield a transport, the descriptor that an editor writes to, and the one that it reads."""
    (stdin, to_agent), (from_agent, stdout) = os.pipe(), os.pipe()
    transport = StdioTransport(stdin, stdout, max_bytes)
    try:
        yield transport, to_agent, from_agent
    finally:
        for descriptor in (to_agent, from_agent):
            with suppress(OSError):
                os.close(descriptor)
        await transport.close()


def _written(descriptor: int) -> list[Any]:
    return [json.loads(line) for line in os.read(descriptor, 1 << 16).splitlines()]


REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}

RUBBISH: list[tuple[bytes, int, int | str | None]] = [
    (b"not json", -32700, None),
    (b"\xff\xfe\x00", -32700, None),
    (b"[" * 100_000, -32700, None),
    (b"[1, 2]", -32600, None),
    (b"5", -32600, None),
    (b'{"id": 7}', -32600, 7),
    (b'{"id": 7, "method": 5}', -32600, 7),
    (b'{"id": {}, "result": 1}', -32600, None),
    (b'{"id": true, "result": 1}', -32600, None),
    (b'{"id": "a", "error": "text"}', -32600, "a"),
    (b'{"jsonrpc":"2.0","id":9,"method":"session/prompt","params":{"x":"' + b"y" * (1 << 17) + b'"}}', -32600, 9),
    (b'{"jsonrpc":"2.0","method":"m","id":"abc","params":"' + b"y" * (3 << 17) + b'"}', -32600, "abc"),
    (b"z" * (2 << 17), -32600, None),
]


@pytest.mark.parametrize(("line", "code", "message_id"), RUBBISH, ids=range(len(RUBBISH)))
async def test_rubbish_is_answered_and_the_next_message_is_read(line, code, message_id):
    async with _opened() as (transport, to_agent, from_agent):
        sending = asyncio.to_thread(_send, to_agent, b"\n" + line + b"\n" + json.dumps(REQUEST).encode() + b"\n")
        received, _ = await asyncio.gather(transport.receive(), sending)
        assert received == REQUEST
        (answer,) = _written(from_agent)
    assert (answer["id"], answer["error"]["code"]) == (message_id, code)
    assert answer["error"]["message"].endswith(".")


async def test_a_message_without_a_line_end_counts_at_the_end_of_the_input():
    async with _opened() as (transport, to_agent, _):
        os.write(to_agent, json.dumps(REQUEST).encode())
        os.close(to_agent)
        assert await transport.receive() == REQUEST
        assert await transport.receive() is None


async def test_all_that_came_before_the_end_of_the_input_is_received():
    async with _opened() as (transport, to_agent, _):
        _send(to_agent, b"".join(json.dumps({**REQUEST, "id": number}).encode() + b"\n" for number in range(60)))
        os.close(to_agent)
        await asyncio.sleep(0.05)
        assert [(await transport.receive())["id"] for _ in range(60)] == list(range(60))
        assert await transport.receive() is None


async def test_messages_go_out_as_lines_in_order():
    async with _opened() as (transport, _, from_agent):
        await asyncio.gather(*(transport.send({"n": number, "text": "a\nb"}) for number in range(20)))
        assert [message["n"] for message in _written(from_agent)] == list(range(20))


async def test_an_editor_that_no_longer_reads_ends_what_is_received():
    async with _opened() as (transport, _, from_agent):
        os.close(from_agent)
        await transport.send(REQUEST)
        await transport.send(REQUEST)  # nothing is raised
        assert await transport.receive() is None


async def test_a_slow_editor_slows_the_agent_down():
    async with _opened() as (transport, _, from_agent):
        sending = asyncio.create_task(transport.send({"text": "x" * (1 << 20)}))  # more than a pipe holds
        await asyncio.sleep(0.05)
        assert not sending.done()
        n_bytes = 0
        while n_bytes < 1 << 20:
            n_bytes += len(await asyncio.to_thread(os.read, from_agent, 1 << 16))
        await sending


def _send(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
