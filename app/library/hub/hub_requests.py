"""Requests for metadata: a repository or a config.json of the hub, the size of a file on any server.

Owns these requests and their retries. Does not choose anything.
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
_Result = TypeVar("_Result")


async def fetch_repository(session: HttpSession, repo: str, revision: str, policy: RetryPolicy) -> Repository:
    """Return the content of `repo` at `revision`; empty is the latest.

    Raises HubError if it does not exist, may not be read, or the hub does not answer.
    """
    place = f"{repo}/revision/{revision}" if revision else repo
    url = f"{session.access.endpoint}/api/models/{quote(place)}?blobs=true"
    return await _fetch_json(session, url, repo, policy, parse_repository)


async def fetch_config(session: HttpSession, repo: str, policy: RetryPolicy) -> dict[str, Any]:
    """Return the config.json of the checkpoint `repo`. Raises HubError as `fetch_repository` does."""

    def parse(config: Any) -> dict[str, Any]:
        if not isinstance(config, dict):
            raise HubError(f"The config.json of {repo} is invalid.", "Choose another checkpoint.")
        return config

    url = session.access.file_url(repo, "config.json")
    return await _fetch_json(session, url, f"config.json of {repo}", policy, parse)


async def _fetch_json(
    session: HttpSession, url: str, name: str, policy: RetryPolicy, parse: Callable[[Any], _Result]
) -> _Result:
    """Return the JSON at `url` of the hub, converted by `parse`."""

    async def attempt() -> _Result:
        async with session.get(url, {}) as reply:
            if (error := hub_refusal(reply.status_code, reply.headers, name)) is not None:
                raise error
            if reply.status_code != 200:
                raise TransientError(f"it answers {reply.status_code}", wait_s=retry_after_s(reply.headers))
            return parse(await _read_json(reply))

    return await _with_retries(attempt, url, policy)


async def fetch_file_info(session: HttpSession, url: str, name: str, policy: RetryPolicy) -> RemoteFile:
    """Return size and mark of the file at `url`. Raises HubError as `fetch_repository` does."""

    async def attempt() -> RemoteFile:
        async with session.get(url, {"Range": "bytes=0-0"}) as reply:
            if reply.status_code in (401, 403, 404, 410):
                raise HubError(f"{name} is not available: the server answers {reply.status_code}.", "Check the URL.")
            n_bytes = _length(reply)
            if n_bytes is None:
                raise TransientError(
                    f"it answers {reply.status_code} without a length", wait_s=retry_after_s(reply.headers)
                )
            return RemoteFile(name, url, n_bytes, mark=content_mark(reply.headers))

    return await _with_retries(attempt, url, policy)


async def _with_retries(attempt: Callable[[], Awaitable[_Result]], url: str, policy: RetryPolicy) -> _Result:
    retries = Retries(policy)
    while True:
        try:
            return await attempt()
        except TransientError as fault:
            try:
                wait_s = retries.wait_s(fault)
            except TransientError as last:
                raise unreachable_error(url, str(last)) from last
            await asyncio.sleep(wait_s)


async def _read_json(reply: httpx.Response) -> Any:
    """Parse the body, of limited size."""
    if reply.headers.get("Content-Encoding", "identity") != "identity":
        raise TransientError("it encodes the reply, which was not requested")
    body = bytearray()
    async for piece in reply.aiter_raw():
        body += piece
        if len(body) > _MAX_BODY_BYTES:
            raise HubError("The hub's response is too large.", "Try again later.")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise TransientError("it sends invalid JSON") from error


def _length(reply: httpx.Response) -> int | None:
    if reply.status_code == 206:
        match = _TOTAL.fullmatch(reply.headers.get("Content-Range", ""))
        return int(match[1]) if match else None
    length = reply.headers.get("Content-Length", "")
    is_valid = length.isascii() and length.isdecimal() and len(length) < 16
    return int(length) if reply.status_code == 200 and is_valid else None
