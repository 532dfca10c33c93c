"""Repositories of the hub that match a query: GGUFs, and checkpoints of supported architectures.

Owns the query through huggingface-hub, with limits on time and size. Little of the hub's metadata is used, because a
model's own header is more reliable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from app import __version__
from app.library.hub.access import HubAccess, HubError, unreachable_error
from app.protocol.library import HubRepository
from quantizer.architectures import ARCHITECTURES

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import ModelInfo

__all__ = ["list_repos"]

_TIMEOUT_S = 20.0
_MAX_BODY_BYTES = 32 << 20
_REMEDIES = {
    401: "Check HF_TOKEN.",
    403: "Check HF_TOKEN.",
    404: "That server is not a hub: check HF_ENDPOINT.",
}
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_LICENCE_TAG = re.compile(r"license:([\w.+-]{1,64})")


def list_repos(access: HubAccess, words: str, n_most: int) -> tuple[HubRepository, ...]:
    """Return at most `n_most` repositories of GGUFs and `n_most` convertible checkpoints, most downloaded first.

    Raises HubError if the search fails.
    """
    from huggingface_hub import HfApi, set_client_factory
    from huggingface_hub.errors import HfHubHTTPError

    set_client_factory(_bounded_client)
    api = HfApi(access.endpoint, access.token or False)
    try:
        ggufs = list(_ggufs(api.list_models(search=words, filter="gguf", **_wanted(n_most))))
        checkpoints = list(_checkpoints(api.list_models(search=words, filter="safetensors", **_wanted(n_most))))
    except HfHubHTTPError as error:
        status = error.response.status_code
        cause = f"{access.endpoint} refuses the search with status {status}."
        raise HubError(cause, _REMEDIES.get(status, "Try again later.")) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HubError("The hub's answer to the search is invalid.", "Try again later.") from error
    return (*ggufs[:n_most], *checkpoints[:n_most])


def _wanted(n_most: int) -> dict[str, Any]:
    return {"sort": "downloads", "limit": n_most, "expand": ["downloads", "tags", "gated", "config"]}


def _ggufs(found: Iterable[ModelInfo]) -> Iterator[HubRepository]:
    for info in found:
        if "gguf" in (info.tags or ()) and _REPO.fullmatch(info.id):
            yield _listed(info, is_checkpoint=False)


def _checkpoints(found: Iterable[ModelInfo]) -> Iterator[HubRepository]:
    for info in found:
        classes = (info.config or {}).get("architectures") or [""]
        if "gguf" not in (info.tags or ()) and classes[0] in ARCHITECTURES and _REPO.fullmatch(info.id):
            yield _listed(info, is_checkpoint=True)


def _listed(info: ModelInfo, *, is_checkpoint: bool) -> HubRepository:
    licences = [match[1] for tag in info.tags or () if (match := _LICENCE_TAG.fullmatch(str(tag)))]
    return HubRepository(
        repo=info.id,
        is_checkpoint=is_checkpoint,
        n_downloads=max(0, int(info.downloads or 0)),
        licence=licences[0] if licences else "",
        is_gated=bool(info.gated),
    )


def _bounded_client() -> httpx2.Client:
    """Return the client for huggingface-hub: its own waits without limit and retries for half a minute."""
    import httpx2

    class BoundedClient(httpx2.Client):
        def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            request.extensions["timeout"] = httpx2.Timeout(_TIMEOUT_S).as_dict()
            request.headers.update({"Accept-Encoding": "identity", "User-Agent": f"localllm/{__version__}"})
            url = str(request.url)
            try:
                with closing(super().send(request, **{**options, "stream": True})) as reply:
                    body = b"".join(_bounded(reply.iter_raw()))
            except httpx2.RequestError as error:
                raise unreachable_error(url, str(error) or type(error).__name__) from error
            if reply.status_code == 429 or reply.status_code >= 500:
                raise unreachable_error(url, f"it answers {reply.status_code}")
            return httpx2.Response(reply.status_code, headers=reply.headers, content=body, request=request)

    return BoundedClient(follow_redirects=True)


def _bounded(pieces: Iterable[bytes]) -> Iterator[bytes]:
    n_bytes = 0
    for piece in pieces:
        n_bytes += len(piece)
        if n_bytes > _MAX_BODY_BYTES:
            raise HubError("The hub's answer to the search is too large.", "Try again later.")
        yield piece
