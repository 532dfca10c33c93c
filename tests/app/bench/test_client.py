from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from itertools import count

import httpx
import pytest

from app.bench.client import BenchClient, TimedAnswer
from app.protocol.errors import ServiceError

USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def _client(*events: object, status: int = 200, clock: Callable[[], float] = time.perf_counter) -> BenchClient:
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    transport = httpx.MockTransport(lambda _request: httpx.Response(status, text=body))
    return BenchClient("http://peer", "m", transport=transport, clock=clock)


def _piece(text: str) -> dict[str, object]:
    return {"choices": [{"text": text}]}


async def test_counts_are_the_servers_and_times_the_clients() -> None:
    timings = {"draft_n": 2, "draft_n_accepted": 1}
    async with _client(_piece("a"), _piece("bc"), {"choices": [], "usage": USAGE, "timings": timings}) as client:
        answer = await client.complete("hello", 3)
    assert (answer.text, answer.n_prompt, answer.n_cached, answer.n_output) == ("abc", 5, 4, 3)
    assert (answer.n_drafted, answer.n_accepted) == (2, 1)
    assert 0 < answer.first_token_s <= answer.ended_s - answer.sent_s
    assert answer.decode_rate == 2 / (answer.arrivals_s[1] - answer.arrivals_s[0])


async def test_an_answer_is_timed_by_the_clock_of_its_client() -> None:
    ticks = count(10)
    async with _client(_piece("a"), _piece("b"), {"usage": USAGE}, clock=lambda: float(next(ticks))) as client:
        answer = await client.complete("hello", 3)
    assert (answer.sent_s, answer.arrivals_s, answer.ended_s) == (10, [11, 12], 13)
    assert answer.first_token_s == 1


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (_piece("a"), "no usage"),
        ({"error": {"message": "out of memory"}}, "out of memory"),
        ([], "does not speak OpenAI's API"),
        ({"choices": [None]}, "does not speak OpenAI's API"),
        ({"usage": {"prompt_tokens": None}}, "does not speak OpenAI's API"),
    ],
)
async def test_what_is_no_answer_is_a_sentence(event: object, words: str) -> None:
    async with _client(event) as client:
        with pytest.raises(ServiceError, match=words):
            await client.complete("hello", 3)


async def test_a_refusal_names_route_and_status() -> None:
    async with _client(status=404) as client:
        with pytest.raises(ServiceError, match="/v1/completions answers 404"):
            await client.complete("hello", 3)
        with pytest.raises(ServiceError, match="/tokenize answers 404"):
            await client.tokenize("hello")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"error": {"message": "Too long.", "code": "x"}}', "answers 400: Too long. The server"),
        ('{"error": "too long"}', "answers 400: too long. The server"),
        ("<html>no</html>", "answers 400: <html>no</html>. The server"),
        ('{"error": null}', "answers 400: None. The server"),
    ],
)
async def test_a_refusal_has_the_servers_message_without_its_json(body: str, told: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(400, text=body))
    async with BenchClient("http://far", "m", transport=transport) as client:
        with pytest.raises(ServiceError, match=re.escape(told)):
            await client.complete("hello", 3)


async def test_a_server_that_is_not_there_is_named() -> None:
    async with BenchClient("http://127.0.0.1:1", "m") as client:
        with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:1 is not ready"):
            await client.wait_ready(timeout_s=0)
        with pytest.raises(ServiceError, match="closed"):
            await client.complete("hello", 3)


def test_an_answer_in_one_piece_has_no_rate() -> None:
    with pytest.raises(ServiceError, match="in 1 pieces"):
        _ = TimedAnswer(sent_s=0.0, arrivals_s=[1.0], n_output=9).decode_rate
