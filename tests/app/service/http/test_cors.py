"""Pages of the setting `origins` may send requests and read the answers; the browser learns nothing for others."""

from __future__ import annotations

import io
import logging
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from app.common.event_log import log_to
from app.service.http.guard import Guard, GuardPolicy, policy_of
from app.service.http.streaming import JsonResponse
from app.settings.settings import Settings

PAGE = "app://obsidian.md"
# What Chromium sends before a page's JSON request with a key.
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Site": "cross-site",
}


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    await JsonResponse({"path": scope["path"]})(scope, receive, send)


def _client(policy: GuardPolicy, base_url: str = "http://localhost:11500") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(Guard(_app, policy)), base_url=base_url)


def _cors(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control")}


async def _exchange(
    policy: GuardPolicy, method: str, headers: dict[str, str], base_url: str = "http://localhost:11500"
) -> httpx.Response:
    async with _client(policy, base_url) as client:
        return await client.request(method, "/v1/chat/completions", headers=headers)


async def test_an_allowed_page_is_told_so_before_it_sends() -> None:
    response = await _exchange(policy_of(Settings(origins="app")), "OPTIONS", PREFLIGHT)
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["vary"] == "Origin"
    assert "POST" in response.headers["access-control-allow-methods"]
    assert response.headers["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert "access-control-allow-private-network" not in response.headers
    assert "access-control-allow-credentials" not in response.headers


async def test_an_allowed_page_may_reach_into_the_private_network() -> None:
    asked = PREFLIGHT | {"Access-Control-Request-Private-Network": "true"}
    response = await _exchange(policy_of(Settings(origins="app")), "OPTIONS", asked)
    assert response.headers["access-control-allow-private-network"] == "true"


async def test_an_allowed_page_reads_answers_and_errors() -> None:
    policy = GuardPolicy(origins=policy_of(Settings(origins="app")).origins, api_key="sesame")
    whole = await _exchange(policy, "POST", {"Origin": PAGE, "Authorization": "Bearer sesame"})
    refused = await _exchange(policy, "POST", {"Origin": PAGE})
    assert (whole.status_code, refused.status_code) == (200, 401)
    for response in (whole, refused):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "x-localllm-warning" in response.headers["access-control-expose-headers"]


async def test_a_preflight_needs_no_key_but_the_request_after_it_does() -> None:
    policy = GuardPolicy(origins=policy_of(Settings(origins="app")).origins, api_key="sesame")
    assert (await _exchange(policy, "OPTIONS", PREFLIGHT)).status_code == 204
    away = "http://workstation.local:11500"
    assert (await _exchange(policy, "OPTIONS", PREFLIGHT, away)).status_code == 204
    assert (await _exchange(policy, "POST", {"Origin": PAGE}, away)).status_code == 403
    with_key = {"Origin": PAGE, "Authorization": "Bearer sesame"}
    assert (await _exchange(policy, "POST", with_key, away)).status_code == 200


async def test_a_preflight_to_a_foreign_host_without_keys_is_refused() -> None:
    policy = policy_of(Settings(origins="app"))
    assert (await _exchange(policy, "OPTIONS", PREFLIGHT, "http://evil.example")).status_code == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "app://obsidian.md, https://evil.example", "tauri://x"]
)
async def test_another_page_is_refused_without_a_header_for_its_browser(origin: str) -> None:
    policy = policy_of(Settings(origins="app"))
    for method, headers in (("OPTIONS", PREFLIGHT), ("POST", {}), ("GET", {})):
        response = await _exchange(policy, method, headers | {"Origin": origin})
        assert response.status_code == 403
        assert not _cors(response)
        assert "vary" not in response.headers


async def test_a_program_gets_no_headers_for_browsers() -> None:
    response = await _exchange(policy_of(Settings(origins="app")), "POST", {})
    assert response.status_code == 200
    assert not _cors(response)


async def test_odd_header_names_are_not_repeated() -> None:
    asked = PREFLIGHT | {"Access-Control-Request-Headers": "x: y"}
    assert (
        "access-control-allow-headers"
        not in (await _exchange(policy_of(Settings(origins="app")), "OPTIONS", asked)).headers
    )


async def test_a_refusal_names_the_entry_that_lets_the_page_in() -> None:
    """What Obsidian's pages send; the answer says what to set, and so does the log, once."""
    output = io.StringIO()
    handler = log_to(output)
    try:
        async with _client(GuardPolicy()) as client:
            refusals: list[Any] = [
                (await client.post("/api/chat", headers={"Origin": origin})).json()["error"]["message"]
                for origin in (PAGE, PAGE, "https://chat.example")
            ]
    finally:
        logging.getLogger("localllm").removeHandler(handler)
    assert refusals[0] == refusals[1]
    assert "add app to the setting origins (LOCALLLM_ORIGINS)" in refusals[0]
    assert "add https://chat.example to" in refusals[2]
    logged = output.getvalue()
    assert logged.count(PAGE) == 1
    assert "https://chat.example" in logged
