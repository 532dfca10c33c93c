"""Engines that are not ours, behind the same chat."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from app.client.remote_engine import RemoteEngine, parse_address
from app.protocol.chat import (
    AnswerDelta,
    Completed,
    GenerationOptions,
    MediaPart,
    Message,
    PromptProgress,
    ThreadUse,
    ToolCall,
    ToolCallDelta,
)
from app.protocol.errors import RequestError, ServiceError
from quantizer.system.errors import EngineError, UserError

USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
HELLO = [Message("user", "hello")]


def _delta(**fields: str) -> dict[str, object]:
    return {"choices": [{"delta": fields, "finish_reason": None}]}


def _engine(
    answer: Callable[[httpx.Request], httpx.Response], clock: Callable[[], float] = lambda: 0.0
) -> RemoteEngine:
    return RemoteEngine("http://peer", "secret", httpx.MockTransport(answer), clock)


def _streaming(*events: object) -> RemoteEngine:
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    ticks = iter(range(100))
    return _engine(lambda _request: httpx.Response(200, text=body), lambda: float(next(ticks)))


async def _said(engine: RemoteEngine) -> tuple[str, Completed]:
    async with engine:
        *deltas, completed = [event async for event in engine.chat(HELLO, "m")]
    assert isinstance(completed, Completed)
    return "".join(delta.text for delta in deltas if isinstance(delta, AnswerDelta)), completed


async def test_an_answer_is_counted_by_the_engine_and_timed_here() -> None:
    text, completed = await _said(
        _streaming(_delta(content="a"), _delta(content="bc"), {"choices": [], "usage": USAGE})
    )
    assert text == "abc"
    assert (completed.n_prompt_tokens, completed.n_cached_tokens, completed.n_output_tokens) == (5, 4, 3)
    assert (completed.time_to_first_token_s, completed.decode_tokens_per_s) == (1.0, 2.0)


async def test_an_engine_without_usage_is_counted_by_pieces() -> None:
    _, completed = await _said(_streaming(_delta(content="a"), _delta(content="b"), _delta(content="c")))
    assert (completed.n_output_tokens, completed.decode_tokens_per_s) == (3, 1.0)


async def test_two_pieces_of_one_burst_measure_no_speed() -> None:
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in (_delta(content="a"), _delta(content="b")))
    ticks = iter((0.0, 1.0, 1.00007))
    engine = _engine(lambda _request: httpx.Response(200, text=f"{body}data: [DONE]\n\n"), lambda: next(ticks))
    _, completed = await _said(engine)
    assert (completed.n_output_tokens, completed.decode_tokens_per_s) == (2, 0.0)


async def test_an_answer_without_tokens_has_no_negative_rate() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 0}
    _, completed = await _said(_streaming(_delta(content="a"), _delta(content="b"), {"choices": [], "usage": usage}))
    assert str(completed.decode_tokens_per_s) == "0.0"


async def test_times_of_llama_cpp_replace_those_of_the_clock() -> None:
    timings = {"predicted_per_second": 77.0, "prompt_per_second": 500.0}
    _, completed = await _said(_streaming(_delta(content="a"), {"choices": [], "usage": USAGE, "timings": timings}))
    assert (completed.decode_tokens_per_s, completed.prefill_tokens_per_s) == (77.0, 500.0)


async def test_thoughts_come_apart_from_the_answer_and_count() -> None:
    events = (_delta(reasoning_content="hm"), _delta(reasoning=" yes"), _delta(content="So."))
    async with _streaming(*events) as engine:
        *deltas, _ = [event async for event in engine.chat(HELLO)]
    assert deltas == [AnswerDelta("", 1, "hm"), AnswerDelta("", 2, " yes"), AnswerDelta("So.", 3)]


async def test_thoughts_in_tags_come_apart_from_the_answer_too() -> None:
    events = (_delta(content="<thi"), _delta(content="nk>hm</think>\n\nSo"), _delta(content=".<"))
    async with _streaming(*events) as engine:
        *deltas, _ = [event async for event in engine.chat(HELLO)]
    assert ("".join(each.reasoning for each in deltas), "".join(each.text for each in deltas)) == ("hm", "So.<")


@pytest.mark.parametrize(("owner", "response_id"), [("llamacpp", "chatcmpl-1"), ("vllm", "")])
async def test_an_answer_has_an_id_where_its_thought_can_be_ended_by_it(owner: str, response_id: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": owner}]})
        events = ({"id": "chatcmpl-1", **_delta(reasoning_content="Hm.")}, _delta(content="Yes."))
        return httpx.Response(200, text="".join(f"data: {json.dumps(event)}\n\n" for event in events))

    async with _engine(answer) as engine:
        await engine.load("m")
        deltas = [event async for event in engine.chat(HELLO, "m") if isinstance(event, AnswerDelta)]
    assert [delta.response_id for delta in deltas] == [response_id, response_id]


async def test_the_thought_of_a_named_answer_is_ended_as_llama_server_does() -> None:
    sent: list[tuple[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json={"success": len(sent) == 1, "message": "not enabled"})

    async with _engine(answer) as engine:
        await engine.end_thought("chatcmpl-1")
        with pytest.raises(RequestError, match="not enabled"):
            await engine.end_thought("chatcmpl-1")
    assert sent[0] == ("/v1/chat/completions/control", {"id": "chatcmpl-1", "action": "reasoning_end"})


async def test_only_options_that_were_given_are_sent() -> None:
    sent: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        assert request.headers["authorization"] == "Bearer secret"
        return httpx.Response(200, text="data: [DONE]\n\n")

    async with _engine(answer) as engine:
        [_ async for _ in engine.chat(HELLO, "m", GenerationOptions(temperature=0.0))]
    assert sent[0].keys() == {"model", "messages", "stream", "stream_options", "temperature"}


async def test_a_text_with_parts_is_sent_whole_since_engines_join_parts_in_their_own_ways() -> None:
    sent: list[dict[str, list[object]]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, text="data: [DONE]\n\n")

    async with _engine(answer) as engine:
        [_ async for _ in engine.chat([Message("user", "one\n\nWhich?", part_ends=(5,))], "m")]
    assert sent[0]["messages"] == [{"role": "user", "content": "one\n\nWhich?"}]


async def test_a_text_is_continued_by_its_completions() -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        chunk = json.dumps({"choices": [{"text": " a time", "finish_reason": "stop"}]})
        return httpx.Response(200, text=f"data: {chunk}\n\ndata: [DONE]\n\n")

    async with _engine(answer) as engine:
        delta, _ = [event async for event in engine.complete("Once upon", "m", GenerationOptions(stop=("END",)))]
    assert delta == AnswerDelta(" a time", 1)
    assert sent[0].url.path == "/v1/completions"
    assert (body := json.loads(sent[0].content))["prompt"] == "Once upon"
    assert body["stop"] == ["END"]


async def test_models_and_their_context_are_listed_and_an_unknown_one_refused() -> None:
    models = {"data": [{"id": "a", "max_model_len": 4096}, {"id": "b", "meta": {"n_ctx": 2048}}, {"id": "c"}]}
    async with _engine(lambda _request: httpx.Response(200, json=models)) as engine:
        status = await engine.status()
        assert [(model.id, model.n_ctx) for model in status.models] == [("a", 4096), ("b", 2048), ("c", 0)]
        assert (await engine.load(""), await engine.load("b")) == ("a", "b")
        with pytest.raises(RequestError, match=r"no model d. It has: a, b, c"):
            await engine.load("d")


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, RequestError, "--api-key"),
        (404, RequestError, "no such"),
        (429, RequestError, "later"),
        (500, EngineError, "log"),
    ],
)
async def test_a_refusal_has_a_remedy(status: int, kind: type[Exception], words: str) -> None:
    error = {"error": {"message": "no such thing"}}
    async with _engine(lambda _request: httpx.Response(status, json=error)) as engine:
        for ask in (engine.status(), engine.chat(HELLO).__anext__()):
            with pytest.raises(kind, match=words):
                await ask


@pytest.mark.parametrize("body", ["<html>", "[]", '{"data": [{}]}', '{"data": []}', '{"data": null}'])
async def test_what_is_no_engine_is_a_sentence(body: str) -> None:
    async with _engine(lambda _request: httpx.Response(200, text=body)) as engine:
        with pytest.raises(ServiceError, match=r"http://peer"):
            await engine.status()


@pytest.mark.parametrize("event", [[], {"choices": [None]}, {"choices": 7}, {"error": {"message": "out of memory"}}])
async def test_an_answer_that_goes_wrong_is_a_sentence(event: object) -> None:
    async with _streaming(_delta(content="a"), event) as engine:
        with pytest.raises(UserError, match=r"invalid response|out of memory$|out of memory\b"):
            [_ async for _ in engine.chat(HELLO)]


async def test_an_engine_that_is_not_there_is_named() -> None:
    async with RemoteEngine("http://127.0.0.1:1") as engine:
        with pytest.raises(ServiceError, match=r"No engine answers at http://127\.0\.0\.1:1"):
            await engine.status()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:11434/v1/", "http://127.0.0.1:11434"),
        ("https://host/base/v1", "https://host/base"),
        ("guide", None),
        ("./http.gguf", None),
        ("publisher/repo", None),
    ],
)
def test_an_address_is_distinguished_from_a_model(text: str, url: str | None) -> None:
    assert parse_address(text) == url


async def test_calls_come_in_pieces_and_count_as_parts_of_the_answer() -> None:
    begun = {"index": 0, "id": "c1", "function": {"name": "read", "arguments": ""}}
    pieces = (begun, {"index": 0, "function": {"arguments": "{}"}})
    events = [{"id": "r", "choices": [{"delta": {"tool_calls": [piece]}, "finish_reason": None}]} for piece in pieces]
    end = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    async with _streaming(_delta(content="So."), *events, end) as engine:
        *deltas, completed = [event async for event in engine.chat(HELLO)]
    assert deltas == [
        AnswerDelta("So.", 1),
        AnswerDelta(n_tokens=2, calls=(ToolCallDelta(0, "c1", "read"),)),
        AnswerDelta(n_tokens=3, calls=(ToolCallDelta(0, arguments="{}"),)),
    ]
    assert completed.finish_reason == "tool_calls"


async def test_calls_of_another_form_are_an_invalid_response() -> None:
    with pytest.raises(ServiceError, match="invalid response"):
        await _said(_streaming({"choices": [{"delta": {"tool_calls": [1]}}]}))


READING = {"total": 1000, "cache": 200, "processed": 600, "time_ms": 4000.0}


@pytest.mark.parametrize(
    ("owner", "is_asked"), [("llamacpp", True), ("localllm", True), ("vllm", False), (None, False)]
)
async def test_only_engines_that_know_it_are_asked_for_the_progress_of_a_prompt(
    owner: str | None, is_asked: bool
) -> None:
    bodies = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": owner}]})
        bodies.append(json.loads(request.content))
        return httpx.Response(200, text="data: [DONE]\n\n")

    async with _engine(answer) as engine:
        await engine.load("m")
        _ = [event async for event in engine.chat(HELLO, "m")]
    assert bodies[0].get("return_progress", False) is is_asked


async def test_the_progress_of_a_prompt_comes_with_the_time_left() -> None:
    nothing = {"choices": [{"delta": {"role": "assistant", "content": None}}], "prompt_progress": READING}
    async with _streaming(nothing, _delta(content="a")) as engine:
        progress, delta, _ = [event async for event in engine.chat(HELLO, "m")]
    assert progress == PromptProgress(n_tokens=1000, n_cached=200, n_read=600, elapsed_s=4.0, left_s=4.0)
    assert isinstance(delta, AnswerDelta)


async def test_a_localllm_elsewhere_estimates_the_time_left_itself() -> None:
    told = {**READING, "left_ms": 9000.0, "machine": {"n_threads": 1, "n_most": 2}}
    async with _streaming({"choices": [], "prompt_progress": told}) as engine:
        progress, _ = [event async for event in engine.chat(HELLO, "m")]
    assert isinstance(progress, PromptProgress)
    assert (progress.left_s, progress.machine) == (9.0, ThreadUse(1, 2))


async def test_a_progress_of_another_form_is_an_invalid_answer() -> None:
    async with _streaming({"choices": [], "prompt_progress": {"total": "many"}}) as engine:
        with pytest.raises(ServiceError, match="invalid response"):
            _ = [event async for event in engine.chat(HELLO, "m")]


_DEEP = "[" * 100_000 + "]" * 100_000
_NONSENSE = [
    _DEEP,
    '{"choices": 1}',
    '{"choices": [1]}',
    '{"choices": [], "usage": "many"}',
    '{"choices": [], "usage": {"prompt_tokens": "5"}}',
    '{"choices": [], "usage": {"prompt_tokens": -1}}',
    '{"choices": [], "usage": {"prompt_tokens": NaN}}',
    '{"choices": [], "usage": {"completion_tokens": 1e999}}',
    '{"choices": [], "usage": {"completion_tokens": true}}',
    '{"choices": [], "usage": {"prompt_tokens_details": [1]}}',
    '{"choices": [], "timings": {"predicted_per_second": "fast"}}',
    '{"choices": [], "timings": [1]}',
    '{"choices": [{"delta": {"content": 5}}]}',
    '{"choices": [{"delta": {"content": ["a"]}}]}',
    '{"choices": [{"delta": {"reasoning": {"a": 1}}}]}',
    '{"choices": [{"delta": {"tool_calls": [{"index": []}]}}]}',
    '{"choices": [{"delta": {"tool_calls": 3}}]}',
    '{"choices": [{"delta": {}, "finish_reason": 7}]}',
    '{"prompt_progress": {"total": 1e999, "cache": 0, "processed": 0, "time_ms": 1}}',
    '{"prompt_progress": {"total": 9, "cache": 0, "processed": "all", "time_ms": 1}}',
    '{"prompt_progress": {"total": 9, "cache": 0, "processed": 1, "time_ms": 1, "left_ms": NaN}}',
    '{"prompt_progress": {"total": 9, "cache": 0, "processed": 1, "time_ms": 1, "machine": {"n_threads": "2"}}}',
    '{"prompt_progress": []}',
]


@pytest.mark.parametrize("event", _NONSENSE)
async def test_nonsense_in_a_stream_is_an_invalid_response_that_says_where(event: str) -> None:
    body = f'data: {{"choices": [{{"delta": {{"content": "a"}}}}]}}\n\ndata: {event}\n\ndata: [DONE]\n\n'
    engine = _engine(lambda _request: httpx.Response(200, text=body))
    if event == '{"prompt_progress": []}':  # says nothing
        assert (await _said(engine))[0] == "a"
        return
    with pytest.raises(ServiceError, match="http://peer sends an invalid response: "):
        await _said(engine)


async def test_numbers_that_an_engine_leaves_open_are_its_defaults() -> None:
    usage = {"prompt_tokens": None, "completion_tokens": 3, "prompt_tokens_details": None}
    timings = {"prompt_per_second": None, "predicted_per_second": None}
    events = (_delta(content="a"), {"choices": [], "usage": usage, "timings": timings})
    _, completed = await _said(_streaming(*events))
    assert (completed.n_prompt_tokens, completed.n_cached_tokens, completed.n_output_tokens) == (0, 0, 3)


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_a_list_and_a_refusal_that_are_nested_too_deep_are_errors_with_a_way_out(status: int) -> None:
    async with _engine(lambda _request: httpx.Response(status, text=_DEEP)) as engine:
        with pytest.raises(UserError) as caught:
            await engine.status()
    assert caught.value.remedy
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("n_ctx", [-1, True, "4096", 1.5, None])
async def test_a_context_that_is_no_length_is_unknown(n_ctx: object) -> None:
    listed = {"data": [{"id": "m", "max_model_len": n_ctx}]}
    async with _engine(lambda _request: httpx.Response(200, json=listed)) as engine:
        assert (await engine.status()).models[0].n_ctx == 0


PNG, WAV = MediaPart("image/png", "AAAA"), MediaPart("audio/wav", "BBBB")
LOOKED = [
    Message("user", "Look."),
    Message("assistant", calls=(ToolCall("c1", "look"), ToolCall("c2", "hear"))),
    Message("tool", "[picture 1]", (PNG,), call_id="c1"),
    Message("tool", "[sound 1]", (WAV,), call_id="c2"),
    Message("assistant", "Red."),
]
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("listed", "looked"),
    [
        ({"data": [{"id": "m"}]}, None),  # nobody knows what it reads, and it may refuse each later question
        ({"data": [{"id": "m", "architecture": {"input_modalities": ["text"]}}]}, None),
        ({"data": [{"id": "m", "architecture": "llama"}], "models": "none"}, None),
        ({"data": [{"id": "m", "architecture": {"input_modalities": ["text", "image"]}}]}, "a turn of the user"),
        (
            {
                "data": [{"id": "m", "owned_by": "llamacpp"}],
                "models": [{"name": "m", "capabilities": ["completion", "multimodal"]}],
            },
            "the result",
        ),
        (
            {"data": [{"id": "m", "owned_by": "llamacpp"}], "models": [{"name": "m", "capabilities": ["completion"]}]},
            None,
        ),
    ],
    ids=["unknown", "OpenRouter, blind", "another form", "OpenRouter", "llama-server", "llama-server, blind"],
)
async def test_a_picture_of_a_result_goes_where_an_engine_that_sees_takes_it(
    listed: dict[str, object], looked: str | None
) -> None:
    bodies = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json=listed)
        bodies.append(json.loads(request.content))
        return httpx.Response(200, text='data: {"choices": [{"delta": {"content": "x"}}]}\n\ndata: [DONE]\n\n')

    async with _engine(answer) as engine:
        model = await engine.load("m")
        assert [event async for event in engine.chat(LOOKED, model)]
    messages = bodies[0]["messages"]
    results = ["[picture 1]", "[sound 1]"]
    if looked == "the result":
        results[0] = [SHOWN, {"type": "text", "text": "[picture 1]"}]
    assert [message["content"] for message in messages[2:4]] == results
    added = messages[4:-1]
    assert [message["role"] for message in added] == (["user"] if looked == "a turn of the user" else [])
    assert all(message["content"][0] == SHOWN for message in added)
