"""Asking what there is: the hub for a repository or a config.json, any server for a file.

Owns these requests and how often they are made. Knows nothing of what is chosen of it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from app.library.download.http_session import HttpSession
from app.library.download.remote_file import RemoteFile
from app.library.download.replies import Retries, RetryPolicy, TransientError, content_mark, retry_after_s
from app.library.hub.access import HubError, hub_refusal, unreachable_error
from app.library.hub.repository import Repository, parse_repository

__all__ = ["fetch_config", "fetch_file_info", "fetch_repository"]

_MAX_BODY_BYTES = 32 << 20
_TOTAL = re.compile(r"bytes 0-0/(\d{1,15})")
_Answer = TypeVar("_Answer")


async def fetch_repository(connection: HttpSession, repo: str, revision: str, policy: RetryPolicy) -> Repository:
    """Return what `repo` holds in `revision`, now where that is empty.

    Raises HubError where it is not there, not given, or nobody answers.
    """
    place = f"{repo}/revision/{revision}" if revision else repo
    url = f"{connection.access.endpoint}/api/models/{quote(place)}?blobs=true"
    return await _ask_json(connection, url, repo, policy, parse_repository)


async def fetch_config(connection: HttpSession, repo: str, policy: RetryPolicy) -> dict[str, Any]:
    """Return the config.json of the checkpoint `repo`. Raises HubError as `fetch_repository` does."""

    def parse(said: Any) -> dict[str, Any]:
        if not isinstance(said, dict):
            raise HubError(f"The config.json of {repo} makes no sense.", "Choose another checkpoint.")
        return said

    url = connection.access.file_url(repo, "config.json")
    return await _ask_json(connection, url, f"config.json of {repo}", policy, parse)


async def _ask_json(
    connection: HttpSession, url: str, name: str, policy: RetryPolicy, parse: Callable[[Any], _Answer]
) -> _Answer:
    """Return what `parse` makes of the JSON at `url` of the hub."""

    async def ask() -> _Answer:
        async with connection.answer(url, {}) as reply:
            if (error := hub_refusal(reply.status_code, reply.headers, name)) is not None:
                raise error
            if reply.status_code != 200:
                raise TransientError(f"it answers {reply.status_code}", wait_s=retry_after_s(reply.headers))
            return parse(await _json(reply))

    return await _persistently(ask, url, policy)


async def fetch_file_info(connection: HttpSession, url: str, name: str, policy: RetryPolicy) -> RemoteFile:
    """Return what the server of `url` says of the file there. Raises HubError as `fetch_repository` does."""

    async def ask() -> RemoteFile:
        async with connection.answer(url, {"Range": "bytes=0-0"}) as reply:
            if reply.status_code in (401, 403, 404, 410):
                raise HubError(f"{name} is not given there: the server answers {reply.status_code}.", "Check the URL.")
            n_bytes = _length(reply)
            if n_bytes is None:
                raise TransientError(
                    f"it answers {reply.status_code} and no length", wait_s=retry_after_s(reply.headers)
                )
            return RemoteFile(name, url, n_bytes, mark=content_mark(reply.headers))

    return await _persistently(ask, url, policy)


async def _persistently(ask: Callable[[], Awaitable[_Answer]], url: str, policy: RetryPolicy) -> _Answer:
    retries = Retries(policy)
    while True:
        try:
            return await ask()
        except TransientError as fault:
            try:
                wait_s = retries.wait_s(fault)
            except TransientError as last:
                raise unreachable_error(url, str(last)) from last
            await asyncio.sleep(wait_s)


async def _json(reply: httpx.Response) -> Any:
    """The body, of which no more is read than a listing can have."""
    if reply.headers.get("Content-Encoding", "identity") != "identity":
        raise TransientError("it encodes what it says, which was not asked for")
    body = bytearray()
    async for piece in reply.aiter_raw():
        body += piece
        if len(body) > _MAX_BODY_BYTES:
            raise HubError("The hub says more than can be believed.", "Try again later.")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise TransientError("it says what is no JSON") from error


def _length(reply: httpx.Response) -> int | None:
    if reply.status_code == 206:
        match = _TOTAL.fullmatch(reply.headers.get("Content-Range", ""))
        return int(match[1]) if match else None
    said = reply.headers.get("Content-Length", "")
    return int(said) if reply.status_code == 200 and said.isascii() and said.isdecimal() and len(said) < 16 else None
