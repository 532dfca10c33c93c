"""How the hub is reached: its address, the token, and who gets to see it.

Owns HF_ENDPOINT, the token as huggingface-hub finds it (HF_TOKEN, or the file that `hf auth login` wrote), and the rule
that the token goes to the hub's own origin only. Knows nothing of what is asked there.

Why the hub does not give a file or a repository, in words, and what would change that.

Owns what its statuses and X-Error-Code mean (source: huggingface-hub's hf_raise_for_status).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

import httpx

from app import __version__
from quantizer.errors import UsageError, UserError

__all__ = [
    "HubAccess",
    "HubError",
    "NotOnHubError",
    "async_http_client",
    "hub_access_from_environment",
    "hub_refusal",
    "redirect_target",
    "unreachable_error",
]

_PUBLIC_HUB = "https://huggingface.co"
_CONNECT_TIMEOUT_S = 10.0
_HEADERS = {"User-Agent": f"localllm/{__version__}", "Accept-Encoding": "identity"}


class HubError(UserError):
    """The hub, or where it sends us, cannot be reached or does not give what was asked for."""


class NotOnHubError(HubError):
    """The hub answers, and what was asked for is not there, or not for everybody."""


@dataclass(frozen=True, slots=True)
class HubAccess:
    """The hub at `endpoint`, and a token for it or ""."""

    endpoint: str = _PUBLIC_HUB
    token: str = ""

    def headers_for(self, url: str) -> dict[str, str]:
        """Return what to send to `url` to be known there: the token to the hub itself, nothing to anyone else."""
        return {"Authorization": f"Bearer {self.token}"} if self.token and self.is_hub_url(url) else {}

    def is_hub_url(self, url: str) -> bool:
        """Return whether `url` is the hub's own, to the scheme and the port."""
        return _origin(url) == _origin(self.endpoint)

    def file_url(self, repo: str, path: str, revision: str = "main") -> str:
        """Return where the file `path` of `repo` is had."""
        return f"{self.endpoint}/{quote(repo)}/resolve/{quote(revision, safe='')}/{quote(path)}"


def hub_access_from_environment(environment: Mapping[str, str] = os.environ) -> HubAccess:
    """Return the access that this environment gives. Raises UsageError for an endpoint that is no web address."""
    from huggingface_hub import get_token  # takes a fifth of a second

    endpoint = environment.get("HF_ENDPOINT", "").rstrip("/") or _PUBLIC_HUB
    scheme, host, _port = _origin(endpoint)
    if scheme not in ("http", "https") or not host:
        cause = f"HF_ENDPOINT is {endpoint!r}, which is no web address."
        raise UsageError(cause, f"Set it to one such as {_PUBLIC_HUB}, or unset it.")
    return HubAccess(endpoint, get_token() or "")


def async_http_client(timeout_s: float) -> httpx.AsyncClient:
    """Return a client that follows no redirect by itself, asks for bytes as they are and says who it is.

    A server that says nothing for `timeout_s` has failed.
    """
    timeout = httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S)
    return httpx.AsyncClient(headers=_HEADERS, timeout=timeout, follow_redirects=False)


def redirect_target(url: str, location: str) -> str:
    """Return where a redirect from `url` leads, which must not be less safe. Raises HubError where nothing is read."""
    try:
        following = httpx.URL(url).join(location)
    except (httpx.InvalidURL, ValueError):
        following = httpx.URL()
    allowed = ("https",) if url.startswith("https:") else ("http", "https")
    if not location or following.scheme not in allowed or not following.host:
        cause = f"{_origin(url)[1]} leads to {location[:200]!r}, where nothing is read."
        raise HubError(cause, "Try again later.")
    return str(following)


def unreachable_error(url: str, reason: str) -> HubError:
    """Return the error for an address that nobody answers at, with what works all the same."""
    return HubError(
        f"{_origin(url)[1] or url} cannot be reached: {reason}.",
        "Check the network. Without it, everything but search and pull works with the models that are here.",
    )


def _origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port, None for the usual one; of what is no address, nothing."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "", "", None
    return parsed.scheme, parsed.host, parsed.port


_GATED = "GatedRepo"
_LOG_IN = "Accept its terms on its page there, then give a token of yours: HF_TOKEN, or `hf auth login`."
_ASK = "Accept its terms on its page there, and wait where its owners let people in one by one."
_SPELLING = "Check the spelling. If it is private, give a token that may read it: HF_TOKEN, or `hf auth login`."
_REFUSALS = {
    (401, _GATED): ("is given only to those who accepted its terms", _LOG_IN),
    (403, _GATED): ("is gated, and the account of your token was not let in yet", _ASK),
    (401, ""): ("is not there, or not for strangers", _SPELLING),
    (403, ""): ("may not be read with your token", _SPELLING),
    (404, ""): ("is not on the hub", "Check the spelling."),
}


def hub_refusal(status: int, headers: Mapping[str, str], name: str) -> NotOnHubError | None:
    """Return why the hub itself refused `name`, None where it did not, or only for now."""
    said = _REFUSALS.get((status, headers.get("X-Error-Code", ""))) or _REFUSALS.get((status, ""))
    return NotOnHubError(f"{name} {said[0]}.", said[1]) if said else None
