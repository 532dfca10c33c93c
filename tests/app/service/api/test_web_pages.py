"""Every request that a web page can make a browser send is refused, without effect and without information.

tests/battery/clients/web_page.py has real pages in a real browser send it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest

from tests.app.raw_http import Reply, exchange, head
from tests.app.running import RunningService

QUESTION = json.dumps({"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1})
HERE = "Host: localhost"

FOREIGN_HOSTS: dict[str, Sequence[str]] = {
    "a name of its own": ("Host: evil.example",),
    "a rebound name with our port": ("Host: evil.example:11500",),
    "our name in theirs": ("Host: localhost.evil.example",),
    "our address in theirs": ("Host: 127.0.0.1.nip.io",),
    "their name in ours": ("Host: evil.localhost",),
    "the root's dot": ("Host: localhost.",),
    "a user": ("Host: evil.example@localhost",),
    "a user of theirs": ("Host: localhost@evil.example",),
    "a path": ("Host: localhost/evil.example",),
    "a backslash": ("Host: localhost\\evil.example",),
    "a fragment": ("Host: localhost#evil.example",),
    "a blank": ("Host: localhost evil.example",),
    "a list": ("Host: localhost, evil.example",),
    "a port that is none": ("Host: localhost:evil",),
    "two ports": ("Host: localhost:80:80",),
    "no port": ("Host: localhost:",),
    "a percent sign": ("Host: localhost%00.evil.example",),
    "letters that look alike": ("Host: loc\xe0lhost",),
    "punycode": ("Host: xn--loclhost-uya",),
    "the address as a number": ("Host: 2130706433",),
    "the address in hexadecimal": ("Host: 0x7f000001",),
    "the address cut short": ("Host: 127.1",),
    "another loopback address": ("Host: 127.0.0.2",),
    "any address": ("Host: 0.0.0.0:11500",),
    "an address of a network": ("Host: 192.168.1.5",),
    "an IPv6 address": ("Host: [fe80::1]",),
    "IPv4 in IPv6": ("Host: [::ffff:127.0.0.1]",),
    "an open bracket": ("Host: [::1",),
    "an empty name": ("Host:",),
    "none": (),
    "two": ("Host: localhost", "Host: evil.example"),
    "the same twice": ("Host: localhost", "Host: localhost"),
    "one that is forwarded": ("Host: evil.example", "X-Forwarded-Host: localhost", "Forwarded: host=localhost"),
}

FOREIGN_ORIGINS: dict[str, Sequence[str]] = {
    "http": ("Origin: http://evil.example",),
    "https": ("Origin: https://evil.example",),
    "with a port": ("Origin: http://evil.example:11500",),
    "a sandboxed page or a file": ("Origin: null",),
    "nothing in it": ("Origin:",),
    "another server on this machine": ("Origin: http://localhost:3000",),
    "ours": ("Origin: http://localhost:11500",),
    "our address": ("Origin: http://127.0.0.1:11500",),
    "our IPv6 address": ("Origin: http://[::1]:11500",),
    "our name in theirs": ("Origin: http://localhost.evil.example",),
    "their name in ours": ("Origin: http://evil.localhost",),
    "a user": ("Origin: http://localhost@evil.example",),
    "an extension": ("Origin: chrome-extension://abcdefghijklmnop",),
    "an app's page": ("Origin: file://",),
    "two": ("Origin: http://localhost", "Origin: http://evil.example"),
    "a list": ("Origin: http://localhost http://evil.example",),
    "a star": ("Origin: *",),
    "a preflight": ("Origin: http://evil.example", "Access-Control-Request-Method: POST"),
    "a request of a private network": ("Origin: http://evil.example", "Access-Control-Request-Private-Network: true"),
    "a page marked by the browser alone": ("Sec-Fetch-Site: cross-site",),
    "another port of the site": ("Sec-Fetch-Site: same-site",),
    "a socket": ("Origin: http://evil.example", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
}

_FORM = "application/x-www-form-urlencoded"
_PARTS = f'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n{QUESTION}\r\n--x--\r\n'
# As a page sends them: the browser says where it comes from, without asking.
SIMPLE_POSTS: dict[str, tuple[str, str, Sequence[str]]] = {
    "text": ("text/plain", QUESTION, ("Origin: http://evil.example",)),
    "text with a character set": ("text/plain;charset=UTF-8", QUESTION, ("Origin: http://evil.example",)),
    "text of a sandboxed page": ("text/plain", QUESTION, ("Origin: null",)),
    "a form of text that reads as JSON": ("text/plain", f'{QUESTION[:-1]},"a":"="}}', ("Origin: null",)),
    "a form": (_FORM, "prompt=x", ("Origin: http://evil.example",)),
    "JSON called a form": (_FORM, QUESTION, ("Origin: http://evil.example",)),
    "a form of parts": ("multipart/form-data; boundary=x", _PARTS, ("Origin: http://evil.example",)),
    "JSON called a form of parts": ("multipart/form-data; boundary=x", QUESTION, ("Origin: http://evil.example",)),
    "a beacon": ("text/plain", QUESTION, ("Origin: http://evil.example", "Sec-Fetch-Mode: no-cors")),
    "a form without an origin": (_FORM, QUESTION, ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate")),
    "JSON that was asked for": ("application/json", QUESTION, ("Origin: http://evil.example",)),
}

READING = ("/v1/models", "/api/tags", "/metrics")
WRITING = ("/v1/chat/completions", "/api/generate", "/completion", "/api/localllm/load")


def _state(service: RunningService) -> Any:
    model = service.model()
    return {name: model[name] for name in ("id", "state", "n_running", "worker_pid", "counters", "occupancy")}


@pytest.fixture(scope="module")
def service(start_service: Callable[..., RunningService]) -> RunningService:
    """One that does nothing of itself: whatever changes, a request has done."""
    return start_service(prefill_ahead="false")


@pytest.fixture
def refuses(service: RunningService) -> Iterator[Callable[[bytes], None]]:
    """Assert that a request is refused without a word about what is here, and in the end that it changed nothing."""
    before = _state(service)
    secret = service.model()["id"]

    def check(request: bytes) -> None:
        reply = exchange(httpx.URL(service.url).port or 0, [request])
        assert reply.status in (400, 403, 404), reply
        assert "access-control" not in reply.headers
        assert secret.encode() not in reply.body

    yield check
    assert _state(service) == before


def _post(path: str, content_type: str, body: str, *headers: str) -> bytes:
    data = body.encode()
    return head("POST", path, *headers, f"Content-Type: {content_type}", f"Content-Length: {len(data)}") + data


@pytest.mark.parametrize("case", FOREIGN_HOSTS)
def test_a_request_to_another_host_is_refused(refuses: Callable[[bytes], None], case: str) -> None:
    for path in READING:
        refuses(head("GET", path, *FOREIGN_HOSTS[case]))
    for path in WRITING:
        refuses(_post(path, "application/json", QUESTION, *FOREIGN_HOSTS[case]))


@pytest.mark.parametrize("case", FOREIGN_ORIGINS)
def test_a_request_of_a_page_is_refused(refuses: Callable[[bytes], None], case: str) -> None:
    for path in READING:
        refuses(head("GET", path, HERE, *FOREIGN_ORIGINS[case]))
        refuses(head("OPTIONS", path, HERE, *FOREIGN_ORIGINS[case]))
    for path in WRITING:
        refuses(_post(path, "application/json", QUESTION, HERE, *FOREIGN_ORIGINS[case]))


@pytest.mark.parametrize("case", SIMPLE_POSTS)
def test_a_post_that_a_browser_sends_by_itself_is_refused(refuses: Callable[[bytes], None], case: str) -> None:
    content_type, body, headers = SIMPLE_POSTS[case]
    for path in WRITING:
        refuses(_post(path, content_type, body, HERE, *headers))


def test_a_program_that_sends_the_same_is_let_in(service: RunningService) -> None:
    reply: Reply = exchange(httpx.URL(service.url).port or 0, [_post("/completion", _FORM, QUESTION, HERE)])
    assert reply.status == 200


LET_IN = "http://localhost:3000"


@pytest.fixture(scope="module")
def friendly(start_service: Callable[..., RunningService]) -> RunningService:
    """A service that lets one page in, and has one name more."""
    return start_service(prefill_ahead="false", origins=LET_IN, hosts="pc.local")


def _reply(service: RunningService, request: bytes) -> Reply:
    return exchange(httpx.URL(service.url).port or 0, [request])


def test_a_page_of_the_setting_asks_sends_and_reads(friendly: RunningService) -> None:
    asked = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type")
    preflight = _reply(friendly, head("OPTIONS", "/v1/chat/completions", HERE, f"Origin: {LET_IN}", *asked))
    assert (preflight.status, preflight.body) == (204, b"")
    assert "access-control-allow-headers: content-type" in preflight.headers.lower()
    sent = _reply(friendly, _post("/completion", "application/json", QUESTION, HERE, f"Origin: {LET_IN}"))
    assert sent.status == 200
    for reply in (preflight, sent):
        assert f"access-control-allow-origin: {LET_IN}" in reply.headers.lower()
    named = _reply(friendly, _post("/completion", "application/json", QUESTION, "Host: pc.local:11500"))
    assert named.status == 200


@pytest.mark.slow
def test_every_other_page_and_name_is_refused_as_before(friendly: RunningService) -> None:
    before = _state(friendly)
    origins = [lines for lines in FOREIGN_ORIGINS.values() if f"Origin: {LET_IN}" not in lines]
    assert len(origins) == len(FOREIGN_ORIGINS) - 1
    requests = [
        *((HERE, *lines) for lines in origins),
        *FOREIGN_HOSTS.values(),
        ("Host: evil.pc.local",),
        ("Host: evil.example", f"Origin: {LET_IN}"),
        (HERE, f"Origin: {LET_IN}", "Origin: http://evil.example"),
    ]
    for lines in requests:
        for request in (
            head("OPTIONS", "/v1/models", *lines, "Access-Control-Request-Method: GET"),
            head("GET", "/v1/models", *lines),
            _post("/completion", "application/json", QUESTION, *lines),
        ):
            reply = _reply(friendly, request)
            assert reply.status in (400, 403, 404), (lines, reply)
            if f"Origin: {LET_IN}" not in lines:
                assert "access-control" not in reply.headers.lower()
    assert _state(friendly) == before
