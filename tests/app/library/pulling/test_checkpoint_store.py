from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from app.library.download.downloader import Downloader, DownloadOptions
from app.library.download.events import Event
from app.library.download.http_session import HttpSession
from app.library.download.remote_file import Digest, RemoteFile
from app.library.hub.access import HubAccess, async_http_client
from app.library.local.index import Index
from app.library.pulling.checkpoint import CheckpointPuller, CheckpointStore, check_free, was_converted
from app.library.pulling.puller import Puller, PullPlan, staged
from quantizer.system.errors import StorageError
from quantizer.write.job import JobRequest

_NAMES = ("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def _no_hub() -> HubAccess:
    return HubAccess("http://127.0.0.1:9")


@pytest.fixture
def order(tmp_path: Path) -> PullPlan:
    files = tuple(RemoteFile(name, f"http://127.0.0.1:9/{name}", 1, Digest("git", 40 * "0")) for name in _NAMES)
    return PullPlan("org/check", files, tmp_path / "checkpoints" / "org" / "check", "", lambda path: path)


@pytest.fixture
async def store(order: PullPlan, tmp_path: Path) -> AsyncIterator[CheckpointStore]:
    said: list[Event] = []
    with Index(tmp_path / "cache") as index:
        puller = Puller(_no_hub(), index, DownloadOptions(), said.append)
        async with async_http_client(1.0) as http, staged(order.folder, _NAMES, said.append) as staging:
            downloader = Downloader(HttpSession(http, _no_hub()), DownloadOptions(), said.append)
            yield CheckpointStore(puller, downloader, staging, order)


def test_a_run_that_was_killed_while_it_cleared_up_is_known(store: CheckpointStore, tmp_path: Path) -> None:
    output, folder = tmp_path / "m.gguf", store.plan.folder
    assert not was_converted(folder, output)
    store.begin(output)
    assert not was_converted(folder, output)
    output.write_bytes(b"whole")
    assert was_converted(folder, output)
    check_free(folder, output, is_overwriting=False)
    store.clear(output, is_removing=False)
    assert not was_converted(folder, output)


def test_an_earlier_file_does_not_count_as_the_output(store: CheckpointStore, tmp_path: Path) -> None:
    output, folder = tmp_path / "m.gguf", store.plan.folder
    output.write_bytes(b"an old one")
    for _ in range(2):  # the second run begins it again
        store.begin(output)
        assert not was_converted(folder, output)
    with pytest.raises(StorageError, match="exists already"):
        check_free(folder, output, is_overwriting=False)
    check_free(folder, output, is_overwriting=True)
    output.write_bytes(b"the new one, of another length")
    assert was_converted(folder, output)


def test_what_was_fetched_goes_and_what_somebody_put_there_stays(store: CheckpointStore, tmp_path: Path) -> None:
    folder = store.plan.folder
    for name in (*_NAMES, "mine.txt", f".fetching/{_NAMES[1]}.0000.head"):
        (folder / name).write_text("x")
    store.begin(tmp_path / "m.gguf")
    store.clear(tmp_path / "m.gguf", is_removing=True)
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["mine.txt"]
    assert [path.name for path in (folder / ".fetching").iterdir()] == [f"{_NAMES[0]}.lock"]


async def test_a_run_killed_during_clean_up_fetches_no_files(order: PullPlan, tmp_path: Path) -> None:
    output, said = tmp_path / "m.gguf", list[Event]()
    mark = order.folder / ".fetching" / f"{output.name}.begun"
    mark.parent.mkdir(parents=True)
    mark.write_text("")
    output.write_bytes(b"whole")
    heard: Callable[[object], None] = said.append
    with Index(tmp_path / "cache") as index:
        puller = Puller(_no_hub(), index, DownloadOptions(), said.append)
        request = JobRequest(str(order.folder), "Q8_0", str(output), 1, is_overwriting=False)

        async def place(_connection: HttpSession) -> PullPlan:
            return order

        await CheckpointPuller(puller, request, is_removing=True, on_event=heard).pull(place)
    assert [event.kind for event in said] == ["chosen", "done"]
    assert not order.folder.exists()
