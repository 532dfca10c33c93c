"""The server of tools for the web: reading a page or a text at a public address, as Markdown.

Owns what a model gets of a file of the web. What may be asked is `app.common.public_web`; a page is read in the child
process that reads attached files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from email.message import Message
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from app.protocol.chat import Tool
from app.tools.tool import CallContext, Effect, FixedServer, Preview, ServerTool, ToolOutput, cleaned, decoded
from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from app.common.public_web import FetchedFile, PublicWeb


_SERVER = "web"
_MAX_BYTES, _FETCH_TIMEOUT_S, _MAX_REDIRECTS = 5 << 20, 30.0, 5
_ACCEPT = "text/html, text/*, application/json, application/pdf"
_REMEDY = "Fetch another address, or ask the user."
_MAX_CHARACTERS = 2000
_SHOWN_CHARACTERS = 200
_TEXTS = ("json", "xml", "javascript", "yaml", "toml", "x-sh")  # types of applications that are texts
_PAGES = ("text/html", "application/xhtml+xml")
_PDF = "application/pdf"

FETCH_URL = ServerTool(
    _SERVER,
    "fetch_url",
    Tool(
        "fetch_url",
        "Read a page or text on the public web. Pages become Markdown; programs and pictures cannot be read.",
        {
            "type": "object",
            "properties": {
                "url": {"type": "string", "maxLength": _MAX_CHARACTERS, "description": "An address with http or https."}
            },
            "required": ["url"],
            "additionalProperties": False,
        },
    ),
    Effect.FETCH,
    "Fetch an address",
    timeout_s=60.0,
)


def public_web() -> PublicWeb:
    from app.common.public_web import FetchLimits, PublicWeb  # imports httpx

    return PublicWeb(FetchLimits(_MAX_BYTES, _FETCH_TIMEOUT_S, _MAX_REDIRECTS, _ACCEPT), _REMEDY)


class WebServer(FixedServer):
    """A `ToolServer` for the web; `web` reads the addresses, None for the public ones."""

    def __init__(self, web: PublicWeb | None = None) -> None:
        super().__init__(_SERVER, (FETCH_URL,))
        self._web = web

    async def preview(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> Preview:
        """Return the address in full: what is sent to its host is in it. Raises UsageError for one of another kind."""
        del tool, context
        address = arguments["url"]
        _check(address)
        host = urlsplit(address).hostname or ""
        text = json.dumps(dict(arguments), ensure_ascii=False, indent=2)
        return Preview("arguments", f"fetch {address[:_SHOWN_CHARACTERS]}", f"{text}\n[asks {host}]")

    async def call(self, tool: ServerTool, arguments: Mapping[str, Any], context: CallContext) -> ToolOutput:
        """Return what is at the address. Raises UserError."""
        del tool, context
        _check(arguments["url"])
        self._web = self._web or public_web()
        found = await self._web.fetch(arguments["url"])
        text = await _text_of(found)
        moved = f"[at {found.address}]\n" if found.address != arguments["url"] else ""
        return ToolOutput(moved + text, detail=f"{len(found.data):,} bytes")


def _check(address: str) -> None:
    """Raise UsageError for an address that is none of the web, or that hides whom it asks."""
    try:
        parts = urlsplit(address)
        is_plain = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
    except ValueError:
        is_plain = False
    if not is_plain or address != cleaned(address) or " " in address or "\n" in address:
        raise UsageError(f"{address[:120]} is not a web address.", "Give one that begins with https://.")


async def _text_of(found: FetchedFile) -> str:
    """Return a file as text: a page or PDF by its parser, which ends when this is cancelled, a text in its encoding.
    Raises UsageError for others."""
    from app.chat.attachments.kinds import kind_of
    from app.chat.attachments.parser_process import ReadBudget, parse
    from app.chat.attachments.parsing import ALL_PAGES

    header = Message()
    header["content-type"] = found.content_type or "application/octet-stream"
    kind, charset = header.get_content_type(), header.get_content_charset("utf-8")
    name = found.address.partition("?")[0][:120]
    if kind in _PAGES or kind == _PDF:
        parsed_kind = kind_of(b"%PDF-1" if kind == _PDF else b"", "page.html")
        budget = ReadBudget()
        try:
            return (await asyncio.to_thread(parse, found.data, parsed_kind, name, ALL_PAGES, budget)).text
        except asyncio.CancelledError:
            budget.stop()
            raise
    is_text = kind.startswith("text/") or any(kind.endswith(ending) for ending in _TEXTS)
    if not is_text or b"\0" in found.data[:4096]:
        cause = f"{name} is not text: it has {len(found.data):,} bytes of the type {kind[:80] or 'that is not given'}."
        raise UsageError(cause, _REMEDY)
    try:
        return found.data.decode(charset, "replace")
    except (LookupError, ValueError):  # an encoding that is none
        return decoded(found.data)
