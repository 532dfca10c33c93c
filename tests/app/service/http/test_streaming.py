from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from app.protocol.errors import ContextOverflowError
from app.service.http import streaming
from app.service.http.errors import RefusedError, openai_error
from app.service.http.streaming import DONE_EVENTS, EventStream, Framing, JsonResponse, LineStream, unless_gone
from quantizer.system.errors import EngineError


class Client:
    """The other end of an ASGI application: collects what is sent, and disconnects on demand."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.leave = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(dict(message))

    async def read(self, items: AsyncGenerator[object, None], framing: Framing = streaming.EVENTS) -> None:
        await EventStream(items, openai_error, framing)({"type": "http"}, self.receive, self.send)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def _events(*parts: int | Exception | float) -> AsyncIterator[int]:
    for part in parts:
        if isinstance(part, Exception):
            raise part
        if isinstance(part, float):
            await asyncio.sleep(part)
        else:
            yield part


async def test_events_are_sent_as_they_come_and_the_answer_is_closed() -> None:
    client = Client()
    await client.read(_events(1, 2))
    assert (client.status, client.body) == (200, b"data: 1\n\ndata: 2\n\n")
    assert not client.sent[-1].get("more_body", False)


async def test_openais_streams_end_with_done() -> None:
    client = Client()
    await client.read(_events(1), DONE_EVENTS)
    assert client.body == b"data: 1\n\ndata: [DONE]\n\n"


async def test_lines_are_json_on_one_line_each() -> None:
    client = Client()
    await LineStream(_events(1, 2), openai_error)({"type": "http"}, client.receive, client.send)
    assert client.body == b"1\n2\n"


async def test_an_error_before_the_first_event_is_a_status() -> None:
    client = Client()
    await client.read(_events(ContextOverflowError(900, 512)))
    assert client.status == 400
    assert json.loads(client.body)["error"]["details"] == {"n_prompt_tokens": 900, "n_ctx": 512}


async def test_an_error_during_an_answer_is_an_event() -> None:
    client = Client()
    await client.read(_events(1, EngineError("It died.")))
    assert client.status == 200
    _, second = client.body.strip().split(b"\n\n")
    assert json.loads(second.removeprefix(b"data: "))["error"]["cause"] == "It died."


async def test_keep_alives_are_bare_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.02)
    client = Client()
    await client.read(_events(0.09, 1, EngineError("It died.")))
    assert client.status == 200
    comments, _, rest = client.body.partition(b"data: 1\n\n")
    assert set(comments.split(b"\n\n")) == {b":", b""}
    assert comments.count(b":\n\n") >= 2
    assert b'"error"' in rest


async def test_a_disconnect_closes_the_events_at_once() -> None:
    client = Client()
    has_begun, is_closed = asyncio.Event(), asyncio.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            yield 1
            has_begun.set()
            await asyncio.sleep(60)
        finally:
            is_closed.set()

    reading = asyncio.create_task(client.read(endless()))
    await has_begun.wait()
    client.leave.set()
    async with asyncio.timeout(60):
        await is_closed.wait()
        await reading


def test_json_is_compact_on_one_line() -> None:
    assert JsonResponse({"content": "é\n", "n": [1, 2]}).body == '{"content":"é\\n","n":[1,2]}'.encode()


async def test_work_before_an_answer_ends_when_the_client_disconnects() -> None:
    client, ended = Client(), asyncio.Event()

    async def work() -> int:
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()
        return 1

    waiting = asyncio.create_task(unless_gone(client.receive, work()))
    await asyncio.sleep(0)
    client.leave.set()
    with pytest.raises(RefusedError, match="has gone"):
        await waiting
    assert ended.is_set()


@pytest.mark.parametrize("has_client", [True, False])
async def test_work_of_a_client_that_stays_returns_its_result_or_raises(has_client: bool) -> None:
    async def work(number: int) -> int:
        if number < 0:
            raise EngineError("It failed.", "Try again.")
        return number

    receive = Client().receive if has_client else None
    assert await unless_gone(receive, work(1)) == 1
    with pytest.raises(EngineError):
        await unless_gone(receive, work(-1))
