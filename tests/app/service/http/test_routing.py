"""Routes as typed functions, and the document made of their signatures."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from app.protocol.errors import RequestError
from app.service.http.errors import RefusedError
from app.service.http.routing import (
    MAX_DEPTH,
    MAX_TEXT_BYTES,
    Router,
    body_type_of,
    document,
    errors,
    parse_object,
    read_body,
    return_type_of,
)
from app.service.http.streaming import EventStream, JsonResponse


class Text(BaseModel):
    text: str


router = Router(prefix="/x")


@router.post("/echo", status_code=201, refusals=errors(404))
async def echo(request: Request, body: Text, times: str = "1") -> JsonResponse[list[str]] | EventStream[int]:
    """Repeat a text."""
    assert request.method == "POST"
    return JsonResponse([body.text] * int(times), 201)


@router.get("/plain")
async def plain() -> PlainTextResponse:
    return PlainTextResponse("plain")


@pytest.fixture
async def http() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(Starlette(routes=router.routes)), base_url="http://localhost"
    )


async def test_a_route_receives_its_body_and_its_query(http: httpx.AsyncClient) -> None:
    response = await http.post("/x/echo?times=2", json={"text": "a"})
    assert (response.status_code, response.json()) == (201, ["a", "a"])


async def test_a_body_of_another_form_is_refused_before_the_route_runs(http: httpx.AsyncClient) -> None:
    with pytest.raises(RequestError, match="text: Field required"):
        await http.post("/x/echo", json={})


def test_a_signature_declares_body_and_answer() -> None:
    assert (body_type_of(echo), body_type_of(plain)) == (Text, None)
    assert return_type_of(plain) is PlainTextResponse


def test_the_document_is_made_of_signatures() -> None:
    paths: dict[str, Any] = document(router.routes, lambda _: dict[str, str])["paths"]
    answers = paths["/x/echo"]["post"]["responses"]
    assert set(answers) == {"201", "400", "401", "403", "404", "408", "415", "413", "500"}
    assert answers["201"]["content"] == {
        "application/json": {"schema": {"type": "array", "items": {"type": "string"}}},
        "text/event-stream": {"x-item-schema": {"type": "integer"}},
    }
    assert paths["/x/echo"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Text")
    assert list(paths["/x/plain"]["get"]["responses"]["200"]["content"]) == ["text/plain"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.dictionaries(st.text(), JSON, max_size=5), st.booleans())
def test_every_shallow_object_comes_back_as_it_was(fields: dict[str, object], ensure_ascii: bool) -> None:
    assert parse_object(json.dumps(fields, ensure_ascii=ensure_ascii).encode()) == fields


@given(st.binary(max_size=200))
def test_any_bytes_give_an_object_or_a_request_error(data: bytes) -> None:
    with contextlib.suppress(RequestError):
        assert isinstance(parse_object(data), dict)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b'"text"',
        b'{"temperature":NaN}',
        b'{"temperature":-Infinity}',
        b'{"content":"\xff\xfe"}',
        b'{"content":"\\ud800"}',
        b'{"\\udfff":1}',
        b'{"n":' + b"9" * 5000 + b"}",
        b'{"a":1}{"b":2}',
    ],
)
def test_anything_but_a_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError):
        parse_object(data)


@pytest.mark.parametrize("unit", [b"[", b'{"a":'])
@pytest.mark.parametrize(("depth", "words"), [(MAX_DEPTH + 1, "nested"), (99_000, "too deep"), (10**6, "lists")])
def test_deep_nesting_is_refused_without_recursion(unit: bytes, depth: int, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        parse_object(b'{"a":' + unit * depth)


def test_brackets_within_strings_are_no_nesting() -> None:
    text = "[{" * 10_000 + '"\\'
    assert parse_object(json.dumps({"content": text}).encode()) == {"content": text}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            b'{"a":[' + b"[]," * 1_000_001 + b"0]}",
            r"has 1,000,003 objects and lists\. Send at most 100,000",
        ),
        (b'{"a":[' + b"1," * 700_000 + b"0]}", r"The request has 700,000 values\. Send at most 600,000"),
        (b'{"messages":[' + b"{}," * 10_000 + b"{}]}", r"messages has 10,001 items\. Send at most 10,000"),
        (b'{"input":[{"content":[' + b'"a",' * 10_000 + b'""]}]}', r"input\[0\]\.content has 10,001 items"),
    ],
)
def test_a_body_of_more_parts_than_any_request_has_is_refused_with_their_number(data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        parse_object(data)


@pytest.mark.slow
def test_text_with_many_brackets_and_commas_and_many_ids_of_tokens_are_taken() -> None:
    text = "[{,}]" * 200_000
    assert parse_object(json.dumps({"content": text}).encode()) == {"content": text}
    assert len(parse_object(json.dumps({"prompt": [*range(500_000)]}).encode())["prompt"]) == 500_000


async def test_a_large_body_is_validated_beside_the_loop() -> None:
    """Nothing of it runs in the thread of the loop, which other requests need."""
    threads = set()

    class Watched(BaseModel):
        messages: list[dict[str, str]]

        @field_validator("messages")
        @classmethod
        def note(cls, value: object) -> object:
            threads.add(threading.get_ident())
            return value

    data = json.dumps({"messages": [{"role": "user"}] * 9_000}).encode()

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": data}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}
    assert len((await read_body(Request(scope, receive), Watched)).messages) == 9_000
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.slow
def test_a_body_may_be_large_by_its_pictures_alone() -> None:
    picture, text = b"A" * (5 << 20), b"two words " * (MAX_TEXT_BYTES // 10)
    four = b",".join([b'"%b"' % picture] * 4)
    assert len(parse_object(b'{"images":[%b]}' % four)["images"]) == 4
    assert len(parse_object(b'{"images":["%b"]}' % (b"A\\/+" * (5 << 20)))["images"][0]) == 3 * (5 << 20)
    with pytest.raises(RefusedError, match="more than 16 MiB without its pictures") as refused:
        parse_object(b'{"text":"%b","images":[%b]}' % (text, four))
    assert refused.value.status == 413
