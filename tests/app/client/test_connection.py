from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import closing, suppress
from typing import Any

import httpx
import pytest

from app.client.connection import CallReader, chat_body, completion_body, received
from app.client.remote_engine import RemoteEngine
from app.client.service_client import ServiceClient
from app.protocol.chat import GenerationOptions, MediaPart, Message, PromptProgress, Tool, ToolCall, with_deltas
from app.protocol.codec import encode
from app.protocol.errors import ServiceError, UserError
from app.protocol.job import Job
from app.protocol.status import MeteredKey


async def test_a_connection_that_its_owner_closed_is_a_service_that_is_not_reached() -> None:
    client = ServiceClient("http://127.0.0.1:11500", transport=httpx.MockTransport(lambda _: httpx.Response(200)))
    async with client:
        pass
    with pytest.raises(ServiceError, match="11500"):
        await client.jobs()
    with pytest.raises(ServiceError, match="11500"):
        async for _ in client.watch_jobs():
            pass


@pytest.mark.slow
async def test_a_request_under_way_when_its_owner_closes_ends_and_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            await reader.read(1)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n" + b'{"jobs": []}'
            )
            await reader.read()

    left: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: left.append(str(unraisable.exc_value)))
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for n_turns in range(30):  # of the event loop before it is closed: while it connects, sends, reads
            async with ServiceClient(f"http://127.0.0.1:{port}") as client:
                asking = asyncio.create_task(client.jobs())
                for _ in range(n_turns):
                    await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await asyncio.wait({asking})
            assert isinstance(asking.exception(), ServiceError) or asking.result() == ()
            del asking
            gc.collect(1)  # what is this young: of all that a long run of tests has, it would take seconds
    gc.collect()
    assert left == []


@pytest.mark.slow
async def test_a_request_that_is_cancelled_while_it_closes_what_the_server_left_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            if len(writers) == 4:  # so that each has a connection
                for each in writers:
                    each.write(
                        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{"jobs": []}'
                    )
            await reader.read()

    left: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: left.append(str(unraisable.exc_value)))
    for n_turns in range(30):
        writers.clear()
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with ServiceClient(f"http://127.0.0.1:{port}") as client:
                await asyncio.gather(*(client.jobs() for _ in range(4)))
                server.close()
                for writer in writers:
                    writer.close()
                    await writer.wait_closed()
                asking = asyncio.create_task(client.jobs())
                for _ in range(n_turns):
                    await asyncio.sleep(0)
                asking.cancel()
                with suppress(asyncio.CancelledError, ServiceError):
                    await asking
        del asking
        gc.collect(1)
    gc.collect()
    assert left == []


async def test_a_request_that_its_caller_cancels_is_closed_before_the_caller_goes_on() -> None:
    is_open = asyncio.Event()

    class Response(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"data: {}\n\n"
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            is_open.clear()

    async def opened(_: httpx.Request) -> httpx.Response:
        is_open.set()
        return httpx.Response(200, stream=Response())

    async def ask() -> None:
        async for _ in client.events("GET", "/api/localllm/jobs/events"):
            pass

    async with ServiceClient("http://127.0.0.1:11500", transport=httpx.MockTransport(opened)) as client:
        for n_turns in range(10):
            asking = asyncio.create_task(ask())
            for _ in range(n_turns):
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert not is_open.is_set()


_JOB = Job(id="1", kind="pull", title="A model", arguments={}, created_s=0)
_TOLD = {"id": "a", "choices": [{"delta": {"content": "Yes"}, "finish_reason": None}], "timings": {"predicted_n": 1}}


@pytest.mark.parametrize(
    ("kind", "read", "event"),
    [
        (ServiceClient, lambda client: client.watch_jobs(), encode(_JOB)),
        (ServiceClient, lambda client: client.watch_job("1"), encode(_JOB)),
        (ServiceClient, lambda client: client.attend(), {}),
        (ServiceClient, lambda client: client.metered_key(), encode(MeteredKey(id="1", secret="s"))),
        (
            ServiceClient,
            lambda client: client.read_ahead([Message("user", "Hi")], "m"),
            encode(PromptProgress(n_tokens=2)),
        ),
        (ServiceClient, lambda client: client.chat([Message("user", "Hi")], "m"), _TOLD),
        (RemoteEngine, lambda engine: engine.chat([Message("user", "Hi")], "m"), _TOLD),
    ],
)
async def test_a_stream_that_its_reader_closes_is_closed_at_once_and_not_by_the_garbage_collector(
    kind: type[ServiceClient | RemoteEngine], read: Callable[[Any], AsyncGenerator[object, None]], event: object
) -> None:
    is_open = True

    class Response(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield f"data: {json.dumps(event)}\n\n".encode()
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            nonlocal is_open
            is_open = False

    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Response()))
    async with kind("http://127.0.0.1:11500", transport=transport) as client:
        stream = read(client)
        await anext(stream)
        assert is_open
        await stream.aclose()
        assert not is_open


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


def test_documents_and_the_question_about_them_are_content_parts_that_make_up_the_text() -> None:
    question = Message("user", "one\n\ntwo\n\nWhich?", part_ends=(5, 10))
    (message,) = chat_body([question], "", None)["messages"]
    assert [part["text"] for part in message["content"]] == ["one\n\n", "two\n\n", "Which?"]
    begun = Message("user", "one\n\n", part_ends=(5,))  # the question is not written yet
    assert chat_body([begun], "", None)["messages"][0]["content"] == [{"type": "text", "text": "one\n\n"}]


def test_calls_their_results_and_the_tools_have_the_form_of_openai() -> None:
    tool = Tool("read_file", "Read it.", {"type": "object"})
    messages = [
        Message("assistant", "", calls=(ToolCall("c1", "read_file", '{"path":"a"}'),), reasoning="hm"),
        Message("tool", "text", call_id="c1", name="read_file"),
    ]
    body = chat_body(messages, "guide", GenerationOptions(tools=(tool,)))
    function = {"name": "read_file", "arguments": '{"path":"a"}'}
    calls = [{"id": "c1", "type": "function", "function": function}]
    assert body["messages"] == [
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "name": "read_file", "content": "text"},
    ]
    definition = {"name": "read_file", "description": "Read it.", "parameters": {"type": "object"}}
    assert body["tools"] == [{"type": "function", "function": definition}]


def test_a_request_without_tools_does_not_mention_them() -> None:
    assert "tools" not in chat_body([Message("user", "Hi")], "guide", GenerationOptions())
    assert "tools" not in completion_body("Hi", "guide", GenerationOptions(tools=(Tool("t", ""),)))


def _piece(index: int | None = None, call_id: str = "", name: str = "", arguments: Any = None) -> dict[str, Any]:
    piece: dict[str, Any] = {"function": {"name": name or None, "arguments": arguments}}
    return piece | ({} if index is None else {"index": index}) | ({"id": call_id} if call_id else {})


def _calls(*pieces: dict[str, Any]) -> tuple[ToolCall, ...]:
    reader, calls = CallReader(), ()
    for piece in pieces:
        calls = with_deltas(calls, reader.read([piece]))
    return calls


BOTH = (ToolCall("a", "read", '{"x":1}'), ToolCall("b", "write", "{}"))


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            (
                _piece(0, "a", "read"),
                _piece(0, arguments='{"x"'),
                _piece(0, arguments=":1}"),
                _piece(1, "b", "write", "{}"),
            ),
            id="as OpenAI",
        ),
        pytest.param((_piece(0, "a", "read", {"x": 1}), _piece(0, "b", "write", {})), id="whole calls of one index"),
        pytest.param(
            (_piece(None, "a", "read"), _piece(arguments='{"x":1}'), _piece(None, "b", "write", "{}")), id="no index"
        ),
        pytest.param(
            (_piece(0, "a", "read", '{"x"'), _piece(0, "a", "read", ":1}"), _piece(1, "b", "write", "{}")),
            id="id and name in each piece",
        ),
        pytest.param(
            (_piece(3, "a", "read"), _piece(7, "b", "write", "{}"), _piece(3, arguments='{"x":1}')), id="other indices"
        ),
    ],
)
def test_pieces_of_engines_make_the_same_calls(pieces: tuple[dict[str, Any], ...]) -> None:
    found = _calls(*pieces)
    assert [(call.call_id, call.name, call.arguments.replace(" ", "")) for call in found] == [
        (call.call_id, call.name, call.arguments) for call in BOTH
    ]


def test_calls_without_ids_or_with_equal_ones_get_their_own() -> None:
    assert [call.call_id for call in _calls(_piece(0, "", "a"), _piece(1, "", "b"))] == ["call00000", "call00001"]
    assert [call.call_id for call in _calls(_piece(0, "x", "a"), _piece(1, "x", "b"))] == ["x", "call00001"]


def test_an_answer_without_calls_has_none() -> None:
    assert CallReader().read(None) == ()


@pytest.mark.parametrize("text", [r'"\ud800"', r'"a\uDfFf"', r'{"\ud83d": ["\ude00\ud83d"]}'])
def test_halves_of_surrogate_pairs_that_a_server_sends_become_question_marks(text: str) -> None:
    for given in (text, text.encode(), text.encode("utf-16")):
        assert "?" in json.dumps(received(given), ensure_ascii=False).encode().decode()


def test_whole_surrogate_pairs_that_a_server_sends_are_kept() -> None:
    assert received(r'["\ud83d\ude00", "\\ud800"]') == ["😀", r"\ud800"]


async def test_no_error_model_or_text_of_a_server_holds_half_a_surrogate_pair() -> None:
    half = r"\ud800"
    answers = {
        "/v1/models": (200, f'{{"data": [{{"id": "m{half}"}}]}}'),
        "/v1/chat/completions": (400, f'{{"error": "no {half}"}}'),
    }
    transport = httpx.MockTransport(lambda request: _answered(*answers.get(request.url.path, (404, "{}"))))
    async with RemoteEngine("http://peer", "", transport) as engine:
        found = await engine.status()
        assert [model.id for model in found.models] == ["m?"]
        with pytest.raises(UserError) as refusal:
            async for _ in engine.chat((Message("user", "hi"),), "m", None):
                pass
    assert refusal.value.cause.endswith("no ?")


def _answered(status: int, text: str) -> httpx.Response:
    return httpx.Response(status, content=text.encode())
