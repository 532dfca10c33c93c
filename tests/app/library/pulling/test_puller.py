from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.library.download.downloader import DownloadOptions
from app.library.download.events import Done, Event, Fetching, Report, Waiting
from app.library.download.http_session import HttpSession
from app.library.hub.access import HubAccess, HubError
from app.library.hub.reference import CatalogueReference, parse_reference
from app.library.hub.repository import Repository
from app.library.hub.selection import QuantChoice
from app.library.local.index import Index
from app.library.pulling.puller import Puller, PullPlan, plan_model_pull
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import StorageError
from tests.app.library.fetching import IMPATIENT
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer


@dataclass
class Library:
    """What one test pulls into."""

    hub: HubServer
    models_dir: Path
    index: Index
    said: list[Event] = field(default_factory=list)

    async def pull(self, reference: str, token: str = "", *, overwrites: bool = False) -> Path:
        return await self.puller(self.said.append, token, overwrites=overwrites).pull(self.order(reference))

    def puller(self, report: Report, token: str = "", *, overwrites: bool = False) -> Puller:
        access, options = HubAccess(self.hub.url, token), DownloadOptions(retry=IMPATIENT)
        return Puller(access, self.index, options, report, overwrites)

    def order(self, text: str) -> Callable[[HttpSession], Awaitable[PullPlan]]:
        reference = parse_reference(text, self.hub.url)
        assert not isinstance(reference, CatalogueReference)
        return lambda connection: plan_model_pull(connection, reference, self.models_dir, _largest)

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.models_dir)) for path in self.models_dir.rglob("*"))


def _largest(repository: Repository) -> QuantChoice:
    return QuantChoice(repository.models[-1], "It is the largest.")


@pytest.fixture
def library(model: bytes, tmp_path: Path) -> Iterator[Library]:
    repo = HubRepo.of("org/repo", {"m-Q4_0.gguf": model, "m-Q8_0.gguf": model + bytes(64), "config.json": b"{}"})
    with HubServer(repo, HubRepo.of("org/gated", {"m.gguf": model}, "manual")) as hub, Index(tmp_path) as index:
        yield Library(hub, tmp_path / "models", index)


async def test_a_model_appears_in_the_library_with_its_hash(library: Library, model: bytes) -> None:
    path = await library.pull("org/repo:q4_0")
    assert path == library.models_dir / "org" / "repo" / "m-Q4_0.gguf"
    assert path.read_bytes() == model
    assert library.files() == ["org", "org/repo", "org/repo/m-Q4_0.gguf"]
    assert library.index.sha256(path) == library.hub.repos["org/repo"].files["m-Q4_0.gguf"].sha256


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("org/repo", "m-Q8_0.gguf"),
        ("org/repo/m-Q4_0.gguf", "m-Q4_0.gguf"),
        ("hf.co/org/repo:Q8_0", "m-Q8_0.gguf"),
        ("{url}/org/repo/blob/main/m-Q4_0.gguf", "m-Q4_0.gguf"),
    ],
)
async def test_all_ways_to_name_it_lead_there(library: Library, reference: str, name: str) -> None:
    assert (await library.pull(reference.format(url=library.hub.url))).name == name


async def test_what_is_there_is_not_fetched_again(library: Library) -> None:
    path = await library.pull("org/repo:Q4_0")
    n_sent = library.hub.n_sent()
    library.index.forget([path])  # a file dropped in by hand is as good
    await library.pull("org/repo:Q4_0")
    assert library.hub.n_sent() == n_sent
    assert isinstance(done := library.said[-1], Done)
    assert not done.is_new


async def test_a_newer_version_replaces_what_came_from_there_and_nothing_else(library: Library, model: bytes) -> None:
    path = await library.pull("org/repo:Q4_0")
    library.hub.repos["org/repo"].put("m-Q4_0.gguf", model + bytes(32))
    await library.pull("org/repo:Q4_0")
    assert len(path.read_bytes()) == len(model) + 32
    path.write_bytes(b"mine")
    library.index.forget([path])
    with pytest.raises(StorageError, match="another file"):
        await library.pull("org/repo:Q4_0")
    assert path.read_bytes() == b"mine"
    await library.pull("org/repo:Q4_0", overwrites=True)
    assert len(path.read_bytes()) == len(model) + 32


_MARKS = [
    ({"ETag": '"one"'}, {"ETag": '"two"'}),
    ({"Last-Modified": "Wed, 01 Apr 2026 12:00:00 GMT"}, {"Last-Modified": "Thu, 02 Apr 2026 12:00:00 GMT"}),
]


@pytest.mark.parametrize(("mark", "other"), _MARKS)
async def test_a_file_at_a_url_that_changed_and_kept_its_length_is_another_one(
    library: Library, model: bytes, mark: dict[str, str], other: dict[str, str]
) -> None:
    url, changed = f"{library.hub.stranger_url}/plain/m.gguf", model[:-9] + b"something"
    library.hub.plain["m.gguf"] = (model, mark)
    path = await library.pull(url)
    n_sent = library.hub.n_sent("stranger")
    assert await library.pull(url) == path
    assert library.hub.n_sent("stranger") == n_sent + 1  # the question what there is
    library.hub.plain["m.gguf"] = (changed, other)
    assert (await library.pull(url)).read_bytes() == changed
    library.index.forget([path])
    with pytest.raises(StorageError, match="may be another file"):
        await library.pull(url)


@pytest.mark.slow
@pytest.mark.parametrize(("mark", "other"), _MARKS)
async def test_a_download_from_a_url_resumes_if_the_file_is_the_same(
    library: Library, model: bytes, mark: dict[str, str], other: dict[str, str]
) -> None:
    url, large, changed = f"{library.hub.stranger_url}/plain/m.gguf", model + bytes(1 << 20), model + b"x" * (1 << 20)
    for data, headers, is_resumed in ((large, mark, True), (changed, other, False)):
        library.hub.plain["m.gguf"] = (large, mark)
        library.hub.inject("truncation", times=40, at=0.5, skip=1, stage="stranger")
        with pytest.raises(HubError):
            await library.pull(url)
        library.hub.injections.clear()
        library.hub.plain["m.gguf"] = (data, headers)
        path = await library.pull(url)
        begun = [event.n_done for event in library.said if isinstance(event, Fetching)]
        assert (begun[-1] > 0) is is_resumed
        assert path.read_bytes() == data
        path.unlink()


async def test_a_file_that_the_gate_refuses_is_never_listed(library: Library, model: bytes) -> None:
    library.hub.repos["org/repo"].put("m-Q4_0.gguf", model[:2000])
    with pytest.raises(ModelFileError):
        await library.pull("org/repo:Q4_0")
    assert library.files() == []


async def test_who_asks_at_the_same_time_waits_and_fetches_nothing(library: Library, model: bytes) -> None:
    library.hub.bytes_per_s = 1_000_000
    paths = await asyncio.gather(*(library.pull("org/repo:Q4_0") for _ in range(4)))
    assert len(set(paths)) == 1
    assert library.hub.n_sent() == len(model)
    assert sum(isinstance(event, Waiting) for event in library.said) == 3


async def test_a_gated_repository_is_explained(library: Library) -> None:
    library.hub.members |= {"known", "reader"}
    library.hub.readers.add("reader")
    with pytest.raises(HubError, match="Accept its terms"):
        await library.pull("org/gated")
    with pytest.raises(HubError, match="no access yet"):
        await library.pull("org/gated", "known")
    assert (await library.pull("org/gated", "reader")).name == "m.gguf"
    strangers = [request for request in library.hub.log if request.origin != "hub"]
    assert strangers
    assert all("authorization" not in request.headers for request in strangers)


@pytest.mark.parametrize(
    ("reference", "words"),
    [("org/nothing", "does not exist"), ("org/repo:Q2_K", "Q4_0, Q8_0"), ("org/repo/other.gguf", "m-Q4_0.gguf")],
)
async def test_a_missing_model_raises_with_the_existing_ones(library: Library, reference: str, words: str) -> None:
    with pytest.raises(HubError, match=words):
        await library.pull(reference)
    assert library.files() == []


async def test_a_file_that_changes_while_it_is_fetched_is_fetched_again(library: Library, model: bytes) -> None:
    changed = model + bytes(96)

    def change(event: Event) -> None:
        if event.kind == "fetching" and library.hub.repos["org/repo"].files["m-Q4_0.gguf"].n_bytes == len(model):
            library.hub.repos["org/repo"].put("m-Q4_0.gguf", changed)

    path = await library.puller(change).pull(library.order("org/repo:Q4_0"))
    assert path.read_bytes() == changed
