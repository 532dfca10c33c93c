"""Search services on loopback that answer in the form of SearXNG and of Brave, as their documentation has it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from app.tools.builtin.web_search import BraveSearch, brave_web
from tests.app.service.generation.test_media_fetching import resolving_to, web

KEY = "BSA-secret-key"
N_LISTED = 12  # results that each service has for every query


class FakeService:
    """A service whose answer to a query is `answered`; `asked` has the path, the parameters and the head of each
    request."""

    def __init__(self, answered: Callable[[str], Any]) -> None:
        self._answered = answered
        self.asked: list[tuple[str, dict[str, list[str]], str]] = []

    async def handle(self, head: str, writer: asyncio.StreamWriter) -> None:
        target = urlsplit(head.split(" ", 2)[1])
        parameters = parse_qs(target.query, keep_blank_values=True)
        self.asked.append((target.path, parameters, head))
        body = json.dumps(self._answered(parameters["q"][0])).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + f"content-length: {len(body)}\r\n\r\n".encode()
        )
        writer.write(body)
        await writer.drain()


def searxng_answer(query: str) -> dict[str, Any]:
    """Source: searx/webutils.py@6057d21 `get_json_response`, and the results of its engines."""
    results = [
        {
            "url": f"https://{n}.example/{n}?a=1&b=2",
            "title": f"{query} {n}",
            "content": f"About {query}, {n}.",
            "engine": "duckduckgo",
            "parsed_url": ["https", f"{n}.example", f"/{n}", "", "a=1&b=2", ""],
            "template": "default.html",
            "engines": ["duckduckgo", "brave"],
            "positions": [n],
            "publishedDate": None,
            "thumbnail": "",
            "score": 1.0 / n,
            "category": "general",
        }
        for n in range(1, N_LISTED + 1)
    ]
    lists: dict[str, Any] = {"answers": [], "corrections": [], "infoboxes": [], "suggestions": ["more"]}
    return {"query": query, "results": results, **lists, "unresponsive_engines": [["google", "CAPTCHA"]]}


def brave_answer(query: str) -> dict[str, Any]:
    """Source: api-dashboard.search.brave.com/documentation, Web Search, `WebSearchApiResponse`."""
    results = [
        {
            "title": f"{query} {n}",
            "url": f"https://{n}.example/{n}",
            "is_source_local": False,
            "is_source_both": False,
            "description": f"About <strong>{query.replace('<', '&lt;')}</strong>, it&#x27;s {n}.",
            "page_age": "2026-10-01T00:00:00",
            "profile": {"name": "Example", "url": f"https://{n}.example", "long_name": f"{n}.example", "img": ""},
            "language": "en",
            "family_friendly": True,
            "type": "search_result",
            "subtype": "generic",
            "meta_url": {"scheme": "https", "netloc": f"{n}.example", "hostname": f"{n}.example", "path": ""},
        }
        for n in range(1, N_LISTED + 1)
    ]
    return {
        "type": "search",
        "query": {"original": query, "more_results_available": True},
        "mixed": {"type": "mixed", "main": [{"type": "web", "index": 0, "all": False}], "top": [], "side": []},
        "web": {"type": "search", "results": results, "family_friendly": True},
    }


@asynccontextmanager
async def running(service: FakeService) -> AsyncIterator[str]:
    """Yield the address of a service that runs here."""
    async with web(service.handle) as port:
        yield f"http://127.0.0.1:{port}"


def local_brave(url: str) -> BraveSearch:
    """Return Brave's service as it would be at `url`, on a machine of the internet."""
    everywhere = brave_web(resolve=resolving_to("127.0.0.1"), is_allowed=lambda _: True)
    return BraveSearch(KEY, f"{url}/res/v1/web/search", everywhere)
