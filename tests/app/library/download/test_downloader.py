from __future__ import annotations

import asyncio
import gc
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.library.download.downloader import RateLimit
from app.library.download.events import Event, Progress
from app.library.download.partial_file import PartialFile
from app.library.hub.access import HubError
from tests.app.library.fetching import NAME, REPO, fetch, remote_file
from tests.app.library.hub_faults import FAULTS
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import CERTIFICATE, HubServer

# anyio loses a socket that is connected in the moment in which who waits for it is cancelled
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True, scope="module")
def _only_what_is_made_here_is_collected() -> None:
    """Leave what tests before these hold to no collection: going through it after each test took 0.3 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _lost_sockets() -> Iterator[None]:
    """Let such a socket be collected in the test that it is of."""
    yield
    gc.collect()


@pytest.mark.slow
async def test_a_file_comes_whole(hub: HubServer, data: bytes, tmp_path: Path) -> None:
    found, _ = await fetch(hub, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == data
    assert found == hashlib.sha256(data).hexdigest()
    assert hub.n_sent() == len(data)


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_fault_that_passes_is_overcome(kind: str, hub: HubServer, data: bytes, tmp_path: Path) -> None:
    hub.inject(kind, times=1, skip=1, at=0.7)
    await fetch(hub, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == data


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_fault_that_stays_leaves_right_bytes_or_an_error(
    kind: str, hub: HubServer, data: bytes, tmp_path: Path
) -> None:
    hub.inject(kind, times=10**6, at=0.0)
    try:
        await fetch(hub, tmp_path / "m")
    except HubError:
        return
    assert (tmp_path / "m").read_bytes() == data


async def test_ranges_fetched_before_an_interruption_are_not_fetched_again(
    hub: HubServer, data: bytes, tmp_path: Path
) -> None:
    hub.bytes_per_s = 8 << 20
    has_some = asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Progress) and event.n_done > 0:
            has_some.set()

    fetching = asyncio.create_task(fetch(hub, tmp_path / "m", on_event=on_event))
    await has_some.wait()
    fetching.cancel()
    await asyncio.wait({fetching})
    hub.bytes_per_s = 0
    with PartialFile(tmp_path / "m", len(data), _mark(data)) as partial:
        n_done = partial.done.n_bytes
    hub.log.clear()
    await fetch(hub, tmp_path / "m")
    assert 0 < n_done < len(data)
    assert hub.n_sent() == len(data) - n_done
    assert (tmp_path / "m").read_bytes() == data


async def test_a_server_without_ranges_is_read_from_the_beginning(hub: HubServer, data: bytes, tmp_path: Path) -> None:
    hub.inject("200 for a range", times=10**6)
    await fetch(hub, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == data


async def test_an_expired_link_is_requested_again(hub: HubServer, data: bytes, tmp_path: Path) -> None:
    hub.bytes_per_s = 16 << 20
    fetching = asyncio.ensure_future(fetch(hub, tmp_path / "m"))
    while not hub.n_sent():  # noqa: ASYNC110 - the hub counts in threads
        await asyncio.sleep(0.005)
    hub.expire_links()
    await fetching
    assert (tmp_path / "m").read_bytes() == data
    assert sum(request.origin == "hub" for request in hub.log) > 1


async def test_the_token_is_the_hubs_alone(hub: HubServer, data: bytes, tmp_path: Path) -> None:
    hub.inject("cross-host redirect", times=10**6)
    await fetch(hub, tmp_path / "m", token="hf_secret")
    who = {request.origin for request in hub.log if "authorization" in request.headers}
    assert who == {"hub"}
    assert {request.origin for request in hub.log} == {"hub", "storage", "stranger"}


async def test_every_byte_counts_towards_the_rate_limit(
    hub: HubServer, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    throttled: list[int] = []

    async def throttle(_limit: RateLimit, n_bytes: int) -> None:
        throttled.append(n_bytes)

    monkeypatch.setattr(RateLimit, "throttle", throttle)
    await fetch(hub, tmp_path / "m")
    assert sum(throttled) == len(data)


def test_a_rate_limit_spreads_all_readers_over_time() -> None:
    clock = iter([0.0, 1.0, 1.0, 9.0])
    limit = RateLimit(100, now=lambda: next(clock))
    assert [limit.wait_s(50), limit.wait_s(100), limit.wait_s(100)] == [0.5, 1.5, 1.0]
    assert RateLimit(0).wait_s(10**9) == 0.0


async def test_a_server_that_cannot_prove_who_it_is_gets_no_second_try(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubServer(HubRepo.of(REPO, {NAME: data}), is_tls=True) as hub:
        with pytest.raises(HubError, match="no valid certificate"):
            await fetch(hub, tmp_path / "m")
        assert hub.log == []
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        await fetch(hub, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == data


async def test_small_files_are_held_against_the_hash_of_git(tmp_path: Path) -> None:
    with HubServer(HubRepo.of(REPO, {NAME: b"", "config.json": b"{}"})) as hub:
        found, _ = await fetch(hub, tmp_path / "config.json", remote_file(hub, name="config.json"))
        assert found == hub.repos[REPO].files["config.json"].blob_id
        await fetch(hub, tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""


def _mark(data: bytes) -> str:
    return f"sha256 {hashlib.sha256(data).hexdigest()} {len(data)}"
