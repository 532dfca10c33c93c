from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.errors import RequestError
from app.settings.parsing import (
    PRESETS,
    WebSearch,
    entry_for,
    parse_duration,
    parse_origins,
    parse_rpc_endpoints,
    parse_web_search,
)
from quantizer.system.errors import UsageError


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        (0, 0.0),
        (300, 300.0),
        (0.5, 0.5),
        ("0", 0.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("500ms", 0.5),
        ("3600", 3600.0),
        (-1, None),
        ("-1", None),
        ("-1m", None),
    ],
)
def test_durations_as_ollamas_clients_write_them(duration: str | float, seconds: float | None) -> None:
    assert parse_duration(duration) == seconds


@pytest.mark.parametrize("duration", ["", "soon", "5x", "m", "5m soon", "--1", "1e9", "9" * 40, 1e300, "9999999h"])
def test_what_is_no_duration_is_refused(duration: str | float) -> None:
    with pytest.raises(RequestError, match="not a duration"):
        parse_duration(duration)


@given(st.text(alphabet="0123456789.-hmsnu µ", max_size=30))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except RequestError:
        return
    assert seconds is None or 0 <= seconds <= 1e9


def test_servers_are_separated_by_commas_and_each_counts_once() -> None:
    assert parse_rpc_endpoints("") == ()
    assert parse_rpc_endpoints("a.local:1, 10.0.0.2:50052,a.local:1") == ("a.local:1", "10.0.0.2:50052")


@pytest.mark.parametrize("text", ["host", "host:", ":1", "host:0", "host:65536", "http://host:1", "[::1]:1", "-o:1"])
def test_invalid_servers_are_errors(text: str) -> None:
    with pytest.raises(UsageError, match="not an RPC server"):
        parse_rpc_endpoints(text)


# What the pages of real programs send as Origin, and the entry that lets them in.
PAGES = {
    "app://obsidian.md": "app",  # Obsidian and its plugins
    "tauri://localhost": "tauri",  # Jan on macOS and Linux
    "http://tauri.localhost": "tauri",  # Jan on Windows
    "vscode-webview://1ab2c3d4e5": "vscode",
    "vscode-file://vscode-app": "vscode",
    "http://localhost:3000": "localhost",  # a page in development
    "https://127.0.0.1:8443": "localhost",
    "http://[::1]:5173": "localhost",
    "chrome-extension://abcdefghijklmnop": "chrome-extension://abcdefghijklmnop",  # Page Assist: no other extension
    "moz-extension://12345678-abcd-ef": "moz-extension://12345678-abcd-ef",
    "file://": "file://",  # the window of an Electron program
    "https://chat.example": "https://chat.example",
    "https://chat.example:8443": "https://chat.example:8443",
}


@pytest.mark.parametrize("origin", PAGES)
def test_the_entry_for_a_page_lets_it_in(origin: str) -> None:
    assert entry_for(origin) == PAGES[origin]
    assert parse_origins(PAGES[origin]).allow(origin)


@pytest.mark.parametrize("origin", PAGES)
def test_no_page_is_let_in_without_an_entry(origin: str) -> None:
    assert not parse_origins("").allow(origin)
    others = ",".join(entry for entry in set(PAGES.values()) if entry != PAGES[origin])
    assert not parse_origins(others).allow(origin)


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "*",
        "http://localhost.evil.example",
        "http://evil.localhost",
        "http://localhost@evil.example",
        "http://localhost:3000 http://evil.example",
        "http://localhost:*",
        "http://127.0.0.1.nip.io",
        "http://evil.tauri.localhost",
        "https://evil.example",
        "app:obsidian.md",
        "http://localhost:3000/path",
    ],
)
def test_the_presets_let_in_no_other_page(origin: str) -> None:
    assert not parse_origins(",".join(PRESETS)).allow(origin)


@pytest.mark.parametrize(
    "entry", ["*", "null", "http://", "https://*", "localhost:3000", "evil.example", "app:", "a b"]
)
def test_an_entry_that_is_no_origin_or_allows_all_is_refused(entry: str) -> None:
    with pytest.raises(UsageError, match=r"not the origin of a page|every page of the web"):
        parse_origins(f"http://localhost:3000,{entry}")


def test_all_pages_of_a_scheme_can_be_allowed() -> None:
    origins = parse_origins("chrome-extension://")
    assert origins.allow("chrome-extension://abcdefghijklmnop")
    assert not origins.allow("moz-extension://abcdefghijklmnop")


def test_all_ports_of_a_host_can_be_allowed() -> None:
    origins = parse_origins("http://pc.local:*")
    assert origins.allow("http://pc.local:3000")
    assert origins.allow("http://pc.local")
    assert not origins.allow("https://pc.local:3000")


def test_case_blanks_and_a_slash_at_the_end_do_not_matter() -> None:
    origins = parse_origins(" HTTPS://Chat.example/ ,, APP://* ")
    assert origins.allow("https://chat.example")
    assert origins.allow("app://obsidian.md")


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("", None),
        (" BRAVE ", WebSearch()),
        ("http://127.0.0.1:8888/", WebSearch(url="http://127.0.0.1:8888")),
        ("https://search.example/searxng", WebSearch(url="https://search.example/searxng")),
        ("ddgr --json -n 10", WebSearch(argv=("ddgr", "--json", "-n", "10"))),
        ("search --at https://a.example", WebSearch(argv=("search", "--at", "https://a.example"))),
        ('"a b" c', WebSearch(argv=("a b", "c"))),
    ],
)
def test_what_searches_the_web_is_a_service_or_a_command(text: str, choice: WebSearch | None) -> None:
    assert parse_web_search(text) == choice


@pytest.mark.parametrize(
    "text",
    [
        *("ftp://a.example", "http://", "http://[::1", "http://a.example?q=x", "http://a.example/#x", "http://a b/"),
        *("http://me:secret@a.example", "'open", "''", "a\0b", "http://a.example:0/", "http://a.example:99999/"),
    ],
)
def test_what_cannot_search_the_web_is_refused_without_what_may_be_a_password(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_web_search(text)
    assert "web_search" in caught.value.cause
    assert "secret" not in str(caught.value)
