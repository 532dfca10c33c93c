"""Routes as typed functions, and the document made of their signatures."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.responses import PlainTextResponse

from app.protocol.errors import RequestError
from app.service.http.openapi import document, errors
from app.service.http.routing import Router, body_type_of, return_type_of
from app.service.http.streaming import EventStream, JsonResponse


class Text(BaseModel):
    text: str


router = Router(prefix="/x")


@router.post("/echo", status_code=201, openapi_extra=errors(404))
async def echo(request: Request, body: Text, times: int = 1) -> JsonResponse[list[str]] | EventStream[int]:
    """Repeat a text."""
    assert request.method == "POST"
    return JsonResponse([body.text] * times, 201)


@router.get("/plain")
async def plain() -> PlainTextResponse:
    return PlainTextResponse("plain")


@pytest.fixture
async def http() -> httpx.AsyncClient:
    app = FastAPI()
    app.include_router(router)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


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
    assert set(answers) == {"201", "400", "401", "403", "404", "408", "413", "500"}
    assert answers["201"]["content"] == {
        "application/json": {"schema": {"type": "array", "items": {"type": "string"}}},
        "text/event-stream": {"x-item-schema": {"type": "integer"}},
    }
    assert paths["/x/echo"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Text")
    assert list(paths["/x/plain"]["get"]["responses"]["200"]["content"]) == ["text/plain"]
