"""What searches the web: a SearXNG, Brave's service, or a command of the person's own.

Owns how each is asked and what of its answer counts as results. What they answer is untrusted: its size, time and form
are bounded, and a result is an address of the web with a title and a text, nothing more.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode, urlsplit

from app.common.terminal import printable_line, quoted_command
from app.settings.parsing import parse_web_search
from app.tools.environment import CommandEnvironment
from app.tools.tool import cleaned, decoded
from quantizer.system.errors import EngineError, UsageError

if TYPE_CHECKING:
    from app.common.public_web import PublicWeb

MOST_RESULTS = 20  # that Brave gives at once
_MAX_BYTES, _TIMEOUT_S = 2 << 20, 20.0
_MAX_COMMAND_BYTES, _COMMAND_TIMEOUT_S = 1 << 20, 30.0
MAX_TITLE, _MAX_TEXT, MAX_ADDRESS = 200, 600, 2000  # characters
_BRAVE = "https://api.search.brave.com/res/v1/web/search"
_OTHER = "Try again later, or choose another `web_search` in the settings."
_LIMITED = "It limits how often it is asked: wait a minute, or ask it for more."
_SEARXNG_REMEDIES = {
    403: "Add json to `formats` under `search` in the settings.yml of that SearXNG; public ones rarely have it.",
    404: "Set `web_search` to the address of a SearXNG itself, without /search.",
    429: _LIMITED,
}
_WRONG_KEY = "Set `web_search_key` to a key of Brave Search: https://api-dashboard.search.brave.com."
_BRAVE_REMEDIES = {401: _WRONG_KEY, 403: _WRONG_KEY, 422: _WRONG_KEY, 429: _LIMITED}


@dataclass(frozen=True, slots=True)
class WebResult:
    """A page that was found: its address, title and the text that a service shows of it; printable and bounded."""

    url: str
    title: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class WebResults:
    """What a search found, best first; `notice` is what it had to do without. A command that prints no JSON has its
    `lines` instead, in which the addresses of the results are."""

    results: tuple[WebResult, ...] = ()
    notice: str = ""
    lines: str = ""


class SearchService(Protocol):
    """Something that searches the web. `asked` says whom or what it asks, for the person who approves a search."""

    @property
    def asked(self) -> str: ...

    async def search(self, query: str, limit: int) -> WebResults:
        """Return at most `limit` results for `query`. Raises UserError, with no key in it."""


def search_service(setting: str, key: str, environment: CommandEnvironment) -> SearchService | None:
    """Return what the setting `web_search` names, None where it is empty. Brave's service needs `key`; a command gets
    `environment`. Raises UsageError for a setting that names nothing of these, and where there is no key."""
    choice = parse_web_search(setting)
    if choice is None:
        return None
    if choice.argv:
        return CommandSearch(choice.argv, environment)
    if choice.url:
        return SearxngSearch(choice.url)
    key = key.strip()  # the line end of a file that it was copied from
    if not key:
        raise UsageError("Brave Search needs a key, and the setting web_search_key has none.", _WRONG_KEY)
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            "The setting web_search_key is no key: it has blanks, line breaks or letters with accents.", _WRONG_KEY
        )
    return BraveSearch(key)


class SearxngSearch:
    """The SearXNG at `url`, by its search API (source: docs.searxng.org/dev/search_api). What is said of it names its
    host alone: some guard theirs by a secret path.

    The person has set its address, and most run their own on this machine or in its network, so that it may be local:
    the one address that may. Nothing that a model, a page or the service itself writes gets there or further: the
    model's words are in the query, and no redirect is followed."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def asked(self) -> str:
        return f"the SearXNG at {_origin(self._url)}"

    async def search(self, query: str, limit: int) -> WebResults:
        from app.common.public_web import FetchLimits, PublicWeb  # imports httpx

        limits = FetchLimits(_MAX_BYTES, _TIMEOUT_S, 0, "application/json")
        web = PublicWeb(limits, _OTHER, is_allowed=lambda _: True, remedies=_SEARXNG_REMEDIES, shown=_origin(self._url))
        address = f"{self._url}/search?{urlencode({'q': query, 'format': 'json'})}"
        data = await _json_at(web, address, {})
        return WebResults(tuple(_results(data, limit, self._url)), _silent_engines(data))


class BraveSearch:
    """Brave's service with the key of the person (source: api-dashboard.search.brave.com, Web Search API). `web` reads
    addresses, None for the public ones alone."""

    def __init__(self, key: str, url: str = _BRAVE, web: PublicWeb | None = None) -> None:
        self._key = key
        self._url = url
        self._web = web

    @property
    def asked(self) -> str:
        return f"Brave Search, {urlsplit(self._url).hostname}"

    async def search(self, query: str, limit: int) -> WebResults:
        parameters = {"q": query, "count": min(limit, MOST_RESULTS), "text_decorations": "false"}
        self._web = self._web or brave_web()
        data = await _json_at(self._web, f"{self._url}?{urlencode(parameters)}", {"x-subscription-token": self._key})
        return WebResults(tuple(_results(data, limit, self._url)))


def brave_web(**options: Any) -> PublicWeb:
    """Return what asks Brave's service; `options` are those of PublicWeb that tests replace."""
    from app.common.public_web import FetchLimits, PublicWeb  # imports httpx

    limits = FetchLimits(_MAX_BYTES, _TIMEOUT_S, 0, "application/json")
    return PublicWeb(limits, _OTHER, remedies=_BRAVE_REMEDIES, **options)


class CommandSearch:
    """A command of the person's own, which gets the query as its last argument and prints results as JSON, or as lines
    with addresses. It runs in the home folder, with `environment`."""

    def __init__(self, argv: Sequence[str], environment: CommandEnvironment) -> None:
        self._argv = tuple(argv)
        self._environment = environment

    @property
    def asked(self) -> str:
        return f"the command {quoted_command(self._argv)}"

    async def search(self, query: str, limit: int) -> WebResults:
        from app.tools.builtin.commands import bound_command
        from app.tools.builtin.processes import run_to_end

        variables, name = self._environment.variables, printable_line(self._argv[0])
        # A query that began with a hyphen would be an option of the command.
        words = (*self._argv, f" {query}" if query.startswith("-") else query)
        command = await asyncio.to_thread(bound_command, words, Path.home(), variables)
        # What it writes to stderr is between no results; a person sees it in a terminal.
        ended = await run_to_end(
            words, command.program, Path.home(), variables, _COMMAND_TIMEOUT_S, lambda _: None, takes_errors=False
        )
        # Its arguments stay here, for a model reads this: one of them may be a key.
        remedy = "Run the command of the setting `web_search` in a terminal, with a query, to see why."
        if ended.reason:
            raise EngineError(f"{name}, which searches the web, was stopped: {ended.reason}.", remedy)
        if ended.status:
            raise EngineError(f"{name}, which searches the web, ended with exit status {ended.status}.", remedy)
        if ended.n_bytes > _MAX_COMMAND_BYTES:
            cause = f"{name}, which searches the web, wrote more than {_MAX_COMMAND_BYTES >> 20} MiB."
            raise EngineError(cause, "Give it an option for fewer results in `web_search`.")
        text = decoded(ended.output).strip()
        data = _json_of(text)
        if data is None:
            return WebResults(lines=cleaned(text))
        return WebResults(tuple(_results(data, limit, name)))


async def _json_at(web: PublicWeb, address: str, headers: Mapping[str, str]) -> dict[str, Any] | list[Any]:
    """Return the JSON at `address`. Raises RequestError, and EngineError for an answer that is none."""
    found = await web.fetch(address, headers)
    data = await asyncio.to_thread(_json_of, decoded(found.data))
    if data is None:
        kind = printable_line(found.content_type.partition(";")[0][:60]) or "something"
        raise EngineError(f"{_origin(address)} answered a search with {kind} that is no JSON of results.", _OTHER)
    return data


def _json_of(text: str) -> dict[str, Any] | list[Any] | None:
    """Return the object or list that a text is, or that its lines are one each; None for any other."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        try:
            data = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return None
        return data if data and all(isinstance(each, dict) for each in data) else None
    return data if isinstance(data, dict | list) else None


# Where results are and what their parts are called: SearXNG, Brave, ddgr and googler, ddgs and Tavily.
_TITLES, _TEXTS = ("title",), ("content", "description", "abstract", "body", "snippet", "text")
_ADDRESSES = ("url", "href", "link")
_MARKUP = re.compile(r"</?(?:strong|b|em|i|mark|span)(?: [^<>]{0,100})?>")


def _results(data: dict[str, Any] | list[Any], limit: int, where: str) -> Iterator[WebResult]:
    """Yield at most `limit` results, each address once. Raises EngineError for JSON without any list of results."""
    listed: Any = data
    if isinstance(data, dict):
        holder = data.get("web", data)
        listed = holder.get("results") if isinstance(holder, dict) else None
        if listed is None and data.get("type") == "search" and "web" not in data:
            listed = []  # how Brave says that it found nothing
    if not isinstance(listed, list):
        raise EngineError(f"{_origin(where)} answered a search with JSON that has no results.", _OTHER)
    seen: set[str] = set()
    for each in listed:
        if len(seen) == limit:
            return
        if not isinstance(each, dict):
            continue
        url = next((each[name] for name in _ADDRESSES if isinstance(each.get(name), str)), "")
        if is_address(url) and url not in seen:
            seen.add(url)
            yield WebResult(url, _text(each, _TITLES, MAX_TITLE) or url[:MAX_TITLE], _text(each, _TEXTS, _MAX_TEXT))


def _text(item: Mapping[str, Any], names: Sequence[str], most: int) -> str:
    """Return the first text of an item that has one of `names`, in a line without markup."""
    value = next((item[name] for name in names if isinstance(item.get(name), str)), "")
    value = " ".join(cleaned(html.unescape(_MARKUP.sub("", value[: 4 * most]))).split())
    return value if len(value) <= most else f"{value[: most - 1]}…"


def is_address(url: str) -> bool:
    """Return whether a text is a whole address of the web that hides nobody: no user, blank or control character."""
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        return False
    return is_plain and len(url) <= MAX_ADDRESS and url == cleaned(url) and not any(map(str.isspace, url))


def _silent_engines(data: dict[str, Any] | list[Any]) -> str:
    """Return which engines of a SearXNG did not answer it, "" where all did."""
    listed = data.get("unresponsive_engines") if isinstance(data, dict) else None
    pairs = [each for each in listed if isinstance(each, list) and each] if isinstance(listed, list) else []
    # Texts alone: writing out what is nested deep raises RecursionError.
    words = ([part[:60] for part in each[:2] if isinstance(part, str)] for each in pairs[:5])
    names = ", ".join(filter(None, (printable_line(" ".join(each))[:60] for each in words)))
    return f"Engines that did not answer: {names}." if names else ""


def _origin(address: str) -> str:
    """Return whom an address asks, without what may be secret in it."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else address
