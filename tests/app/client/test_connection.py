from __future__ import annotations

import httpx
import pytest

from app.client.connection import chat_body
from app.client.remote_engine import RemoteEngine
from app.client.service_client import ServiceClient
from app.protocol.chat import MediaPart, Message
from quantizer.errors import ServiceError


async def test_a_connection_that_its_owner_closed_is_a_service_that_is_not_reached() -> None:
    client = ServiceClient("http://127.0.0.1:11500", transport=httpx.MockTransport(lambda _: httpx.Response(200)))
    async with client:
        pass
    with pytest.raises(ServiceError, match="11500"):
        await client.jobs()
    with pytest.raises(ServiceError, match="11500"):
        async for _ in client.watch_jobs():
            pass


async def test_so_is_an_engine_elsewhere() -> None:
    engine = RemoteEngine("http://far:8000", transport=httpx.MockTransport(lambda _: httpx.Response(200)))
    async with engine:
        pass
    with pytest.raises(ServiceError, match="far:8000"):
        await engine.status()


async def test_a_mistake_of_ours_is_not_blamed_on_the_service() -> None:
    def broken(_: httpx.Request) -> httpx.Response:
        raise RuntimeError("a bug")

    async with ServiceClient("http://127.0.0.1:11500", transport=httpx.MockTransport(broken)) as client:
        with pytest.raises(RuntimeError, match="a bug"):
            await client.jobs()


async def test_events_of_the_service_that_end_without_done_are_incomplete() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text="data: {}\n\n"))
    async with ServiceClient("http://127.0.0.1:11500", transport=transport) as client:
        events = client.events("GET", "/api/localllm/jobs/events")
        assert await anext(events) == {}
        with pytest.raises(ServiceError, match="before it was complete"):
            await anext(events)


@pytest.mark.parametrize("status", [200, 404])
async def test_another_program_on_the_port_is_reported(status: int) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text="<html>"))
    async with ServiceClient("http://127.0.0.1:11500", transport=transport) as client:
        with pytest.raises(ServiceError, match="Another program"):
            await client.jobs()


def test_pictures_and_sounds_are_content_parts_before_the_text() -> None:
    media = (MediaPart("image/png", "UE5H"), MediaPart("audio/wav", "V0FW"), MediaPart("audio/mpeg", "TVAz"))
    body = chat_body([Message("system", "Be brief."), Message("user", "What is this?", media)], "guide", None)
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,UE5H"}},
                {"type": "input_audio", "input_audio": {"data": "V0FW", "format": "wav"}},
                {"type": "input_audio", "input_audio": {"data": "TVAz", "format": "mp3"}},
                {"type": "text", "text": "What is this?"},
            ],
        },
    ]


def test_a_picture_without_words_is_sent_without_an_empty_text() -> None:
    (message,) = chat_body([Message("user", "", (MediaPart("image/png", "UE5H"),))], "", None)["messages"]
    assert [part["type"] for part in message["content"]] == ["image_url"]
