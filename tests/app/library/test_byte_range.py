from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from hub_repos import HubRepo
from hub_server import HubServer

from app.library.byte_range import RangeReader
from app.library.hub_access import HubAccess, HubError, http_client

DATA = bytes(range(256)) * 4096
REPO, NAME = "someone/thing", "thing.gguf"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(HubRepo.of(REPO, {NAME: DATA, "config.json": b"{}"})) as hub:
        yield hub


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with http_client() as client:
        client.timeout = httpx.Timeout(0.5)
        yield client


def reader(hub: HubServer, http: httpx.Client, name: str = NAME) -> RangeReader:
    access = HubAccess(hub.url)
    return RangeReader(http, access.file_url(REPO, name), access, pause=lambda _seconds: None)


def test_parts_come_as_they_are_asked_for(hub: HubServer, http: httpx.Client) -> None:
    parts = reader(hub, http)
    assert parts.read(0, 1000) == DATA[:1000]
    assert parts.n_bytes == len(DATA)
    assert parts.read(len(DATA) - 10, len(DATA) + 10) == DATA[-10:]


@pytest.mark.parametrize("kind", ["truncation", "429", "5xx", "stall", "reset", "tls error", "cross-host redirect"])
def test_what_passes_is_tried_again(hub: HubServer, http: httpx.Client, kind: str) -> None:
    parts = reader(hub, http)
    hub.inject(kind)
    assert parts.read(0, 300_000) == DATA[:300_000]
    hub.inject(kind, times=2)
    assert parts.read(300_000, 600_000) == DATA[300_000:600_000]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("200 for a range", "changed"),
        ("416", "no such part"),
        ("redirect loop", "in circles"),
        ("etag change", "changed"),
        ("wrong length", "changed"),
        ("gzip", "no parts that can be read"),
    ],
)
def test_what_is_wrong_is_never_taken_for_the_file(hub: HubServer, http: httpx.Client, kind: str, reason: str) -> None:
    parts = reader(hub, http)
    assert parts.read(0, 100) == DATA[:100]
    hub.inject(kind)
    with pytest.raises(HubError, match=reason):
        parts.read(100, 200_000)


def test_a_server_that_stays_away_is_given_up_with_what_works_without_it(hub: HubServer, http: httpx.Client) -> None:
    hub.inject("5xx", times=99)
    with pytest.raises(HubError, match="cannot be reached") as refused:
        reader(hub, http).read(0, 10)
    assert "Without it" in refused.value.remedy
    assert len([entry for entry in hub.log if entry.origin == "storage"]) == 3


def test_a_server_without_parts_gives_small_files_whole_and_large_ones_not_at_all(
    hub: HubServer, http: httpx.Client
) -> None:
    hub.inject("200 for a range", times=2)
    assert reader(hub, http).read(0, len(DATA)) == DATA
    with pytest.raises(HubError, match="does not send parts"):
        reader(hub, http).read(0, 1000)


def test_a_link_that_expired_is_asked_for_anew(hub: HubServer, http: httpx.Client) -> None:
    parts = reader(hub, http)
    parts.read(0, 100)
    hub.expire_links()
    assert parts.read(100, 200) == DATA[100:200]


def test_a_file_that_changes_meanwhile_is_noticed(hub: HubServer, http: httpx.Client) -> None:
    parts = reader(hub, http, "config.json")
    assert parts.read(0, 2) == b"{}"
    hub.repos[REPO].put("config.json", b"[]")
    with pytest.raises(HubError, match="changed"):
        parts.read(0, 2)


@pytest.mark.parametrize("location", ["", "ftp://elsewhere/file", "file:///etc/passwd", "http://[", "http://a:b/"])
def test_a_redirect_to_where_nothing_is_read_is_refused(location: str) -> None:
    headers = {"Location": location} if location else {}
    transport = httpx.MockTransport(lambda _request: httpx.Response(302, headers=headers))
    with httpx.Client(transport=transport) as http, pytest.raises(HubError):
        RangeReader(http, "https://hub/a/b/file", HubAccess("https://hub"), lambda _seconds: None).read(0, 10)


def test_a_redirect_from_https_to_http_is_refused() -> None:
    transport = httpx.MockTransport(lambda _request: httpx.Response(302, headers={"Location": "http://hub/file"}))
    with httpx.Client(transport=transport) as http, pytest.raises(HubError, match="leads to"):
        RangeReader(http, "https://hub/a/b/file", HubAccess("https://hub", "secret")).read(0, 10)
