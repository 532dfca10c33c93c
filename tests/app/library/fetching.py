"""Downloads from the test hub with short waits, and their events."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from app.library.download.downloader import Downloader, DownloadOptions
from app.library.download.events import Event
from app.library.download.http_session import HttpSession, RetryPolicy
from app.library.download.remote_file import Digest, RemoteFile
from app.library.hub.access import HubAccess, async_http_client
from tests.app.library.hub_server import HubServer

__all__ = ["IMPATIENT", "NAME", "REPO", "fetch", "noise", "remote_file"]

REPO, NAME = "org/repo", "m-Q4_0.gguf"
IMPATIENT = RetryPolicy(n_attempts=6, first_wait_s=0.01, max_wait_s=0.05, max_retry_after_s=1.0, stall_s=0.5)


def noise(n_bytes: int, seed: int = 1) -> bytes:
    """Bytes of which none can be mistaken for another place's."""
    return random.Random(seed).randbytes(n_bytes)


def remote_file(hub: HubServer, repo: str = REPO, name: str = NAME) -> RemoteFile:
    """Return a file of the hub's listing."""
    held = hub.repos[repo].files[name]
    digest = Digest("sha256", held.sha256) if held.is_lfs else Digest("git", held.blob_id)
    return RemoteFile(name, f"{hub.url}/{repo}/resolve/main/{quote(name)}", held.n_bytes, digest)


async def fetch(
    hub: HubServer,
    path: Path,
    file: RemoteFile | None = None,
    token: str = "",
    on_event: Callable[[Event], object] = lambda _event: None,
    **options: int,
) -> tuple[str, list[Event]]:
    """Fetch a file of the hub and return its hash and its events, each also passed to `on_event` at once."""
    events: list[Event] = []

    def report(event: Event) -> None:
        events.append(event)
        on_event(event)

    async with async_http_client(IMPATIENT.stall_s) as http:
        session = HttpSession(http, HubAccess(hub.url, token))
        downloader = Downloader(session, DownloadOptions(retry=IMPATIENT, **options), report)
        return await downloader.fetch(file or remote_file(hub), path), events
