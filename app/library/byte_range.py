"""Parts of a file behind a URL, by HTTP Range: whatever the server does, the right bytes or a sentence.

Owns redirects (followed by hand, so that the token stays at home), retries, and the check that all parts are of the
same file. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx

from app.library.hub_access import HubAccess, HubError, next_url, no_network

__all__ = ["RangeReader"]

_MAX_REDIRECTS = 5
_N_ATTEMPTS = 3
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
_LONGEST_S = 60.0  # for one part: a server that drips is one that stalls
_REDIRECTS = {301, 302, 303, 307, 308}
_TRANSIENT = {408, 429, 500, 502, 503, 504}
_MOST_DIGITS = 18
_PART = re.compile(rf"bytes (\d{{1,{_MOST_DIGITS}}})-(\d{{1,{_MOST_DIGITS}}})/(\d{{1,{_MOST_DIGITS}}})")
_LICENCE = "Accept its terms on its page, and give a token of yours: `hf auth login`, or HF_TOKEN."
_REFUSALS = {
    401: ("is not given to strangers, or is not there", _LICENCE),
    403: ("is not given to you", _LICENCE),
    404: ("is not there", "Check the name of the repository and of the file."),
    416: ("has no such part", "It may be empty, or have changed: try again."),
}


class _PassingError(Exception):
    """What may go well the next time; the server may have said when."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class RangeReader:
    """Reads parts of the file at `url`. `n_bytes`, its length, is known after the first part.

    `pause` sleeps for some seconds before another attempt.
    """

    def __init__(
        self, http: httpx.Client, url: str, access: HubAccess, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.n_bytes: int | None = None
        self._http = http
        self._asked_url = url
        self._url = url
        self._access = access
        self._pause = pause
        self._etag = ""

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop), fewer where the file ends. Raises HubError."""
        for attempt in range(1, _N_ATTEMPTS + 1):
            try:
                return self._read_once(start, stop)
            except _PassingError as error:
                if attempt == _N_ATTEMPTS:
                    raise no_network(self._url, str(error)) from error
                self._pause(max(_PAUSE_S * 2**attempt, min(error.retry_after_s, _LONGEST_PAUSE_S)))
                self._url = self._asked_url  # a link that was given out may have expired
        raise AssertionError

    def _read_once(self, start: int, stop: int) -> bytes:
        with self._answered(start, stop) as reply:
            if reply.status_code == 403 and self._url != self._asked_url:
                raise _PassingError("the link it gave has expired")
            if reply.status_code in _TRANSIENT:
                raise _PassingError(f"it answers {reply.status_code}", _retry_after_s(reply))
            if reply.status_code == 200 and start == 0 and self.n_bytes is None:
                return self._body(reply, self._whole(reply, stop))
            if reply.status_code != 206:
                raise self._refusal(reply)
            return self._body(reply, self._agreed(reply, start, stop) - start)

    @contextmanager
    def _answered(self, start: int, stop: int) -> Iterator[httpx.Response]:
        """The reply to a request for the part, from wherever redirects lead."""
        url = self._url
        part = {"Range": f"bytes={start}-{stop - 1}"} | ({"If-Range": self._etag} if self._etag else {})
        for _ in range(_MAX_REDIRECTS + 1):
            try:
                with self._http.stream("GET", url, headers=part | self._access.headers_for(url)) as reply:
                    if reply.status_code not in _REDIRECTS:
                        self._url = url
                        yield reply
                        return
                    url = next_url(url, reply.headers.get("Location", ""))
            except httpx.TransportError as error:
                raise _PassingError(str(error) or type(error).__name__) from error
        raise HubError(f"{self._name} leads in circles.", "The server is at fault: try again later.")

    def _agreed(self, reply: httpx.Response, start: int, stop: int) -> int:
        """Return where the part ends, once it is the one asked for, as it is, of the same file as those before."""
        match = _PART.fullmatch(reply.headers.get("Content-Range", ""))
        if match is None or not _is_plain(reply):
            raise HubError(f"{self._name} comes in no parts that can be read.", "Download it from elsewhere.")
        begin, last, n_bytes = (int(number) for number in match.groups())
        if self.n_bytes is None:
            self.n_bytes, self._etag = n_bytes, _strong_etag(reply)
        if (n_bytes, _strong_etag(reply)) != (self.n_bytes, self._etag):
            raise self._changed()
        if begin != start or last + 1 != min(stop, n_bytes):
            raise HubError(f"{self._name} comes in other parts than asked for.", "Try again later.")
        return last + 1

    def _whole(self, reply: httpx.Response, stop: int) -> int:
        """Return the length of a file of which the server sends no parts, where all of it was asked for."""
        said = reply.headers.get("Content-Length", "")
        if not said.isdecimal() or len(said) > _MOST_DIGITS or int(said) > stop or not _is_plain(reply):
            raise HubError(f"The server of {self._name} does not send parts of it.", "Download it, and name the file.")
        self.n_bytes = int(said)
        self._etag = _strong_etag(reply)
        return self.n_bytes

    def _body(self, reply: httpx.Response, n_bytes: int) -> bytes:
        """Return exactly `n_bytes`, and read no more of a server that sends more."""
        body, deadline_s = bytearray(), time.monotonic() + _LONGEST_S
        for piece in reply.iter_raw():
            body += piece
            if len(body) >= n_bytes:
                return bytes(body[:n_bytes])
            if time.monotonic() > deadline_s:
                raise _PassingError("it stalls")
        raise _PassingError(f"it hangs up after {len(body):,} of {n_bytes:,} bytes")

    def _refusal(self, reply: httpx.Response) -> HubError:
        if reply.status_code == 200:  # the answer to If-Range where the file is another
            return self._changed()
        what, remedy = _REFUSALS.get(reply.status_code, (f"is answered with {reply.status_code}", "Try again later."))
        return HubError(f"{self._name} {what}.", remedy)

    def _changed(self) -> HubError:
        return HubError(f"{self._name} changed while it was read.", "Try again.")

    @property
    def _name(self) -> str:
        return urlsplit(self._asked_url).path.rpartition("/")[2] or self._asked_url


def _strong_etag(reply: httpx.Response) -> str:
    """The mark of these very bytes, "" without one; a weak one would do for others too."""
    etag: str = reply.headers.get("ETag", "")
    return etag if etag.startswith('"') else ""


def _is_plain(reply: httpx.Response) -> bool:
    return bool(reply.headers.get("Content-Encoding", "identity") == "identity")


def _retry_after_s(reply: httpx.Response) -> float:
    said = reply.headers.get("Retry-After", "")
    return float(said) if said.isdecimal() and len(said) < 6 else 0.0
