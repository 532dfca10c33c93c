"""Pictures and sounds of the web that a request names by their address, where the settings allow it.

A module of its own, since it needs httpx, and few services read the web.
"""

from __future__ import annotations

from collections.abc import Callable

from app.common.media_formats import format_of
from app.common.public_web import FetchLimits, PublicWeb, Resolve, is_public, resolve

MAX_FETCHED_BYTES = 20 << 20


class WebFetcher:
    """A `MediaFetcher` of the web. `resolve` and `is_allowed` decide on addresses; tests have their own."""

    def __init__(self, resolve: Resolve = resolve, is_allowed: Callable[[str], bool] = is_public) -> None:
        limits = FetchLimits(max_bytes=MAX_FETCHED_BYTES, accept="image/*, audio/*")
        self._web = PublicWeb(limits, "Send the file itself, as a data URL in Base64.", resolve, is_allowed)

    async def fetch(self, address: str) -> bytes:
        """Return the picture or sound at `address`. Raises RequestError for an address that is not public, one that
        does not answer in time or with too much, and for any other kind of file."""
        data = (await self._web.fetch(address)).data
        format_of(data)
        return data
