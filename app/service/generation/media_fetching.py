"""Pictures and sounds at addresses on the web, which only the setting `fetch_media_urls` lets the service read.

What may be connected to, and how far, is that of `app.common.public_web`; what the file is, its bytes say.
"""

from __future__ import annotations

from collections.abc import Callable

from app.common.media_formats import format_of
from app.common.public_web import FetchLimits, PublicWeb, Resolve, is_public, resolve

MAX_FETCHED_BYTES = 20 << 20
_LIMITS = FetchLimits(max_bytes=MAX_FETCHED_BYTES, accept="image/*, audio/*")
_REMEDY = "Send the file itself, as a data URL in Base64."


class WebFetcher:
    """A `MediaFetcher` of the web. `resolve` and `is_allowed` decide on addresses; tests have their own."""

    def __init__(self, resolve: Resolve = resolve, is_allowed: Callable[[str], bool] = is_public) -> None:
        self._web = PublicWeb(_LIMITS, _REMEDY, resolve, is_allowed)

    async def fetch(self, address: str) -> bytes:
        """Return the picture or sound at `address`.

        Raises RequestError for an address that is not public, one that does not answer in time or with too much, and
        for any other kind of file.
        """
        data = (await self._web.fetch(address)).data
        format_of(data)
        return data
