from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.library.download.downloader import DownloadOptions
from app.library.download.events import Chosen, Done, Event, Fetching, HeadAdded, HeadLeftOut, Progress
from app.library.download.http_session import HttpSession
from app.library.hub.access import HubAccess
from app.library.hub.reference import FileReference, RepoReference, parse_reference
from app.library.hub.repository import Repository
from app.library.hub.selection import QuantChoice
from app.library.local.index import Index
from app.library.pulling.puller import Puller, PullPlan, plan_model_pull
from quantizer.system.errors import StorageError
from tests.app.library.fetching import IMPATIENT
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.quantizer.gguf_draft_heads import draft_head, drafted_model
from tests.quantizer.gguf_files import tiny_llama

MODEL, HEAD = "m-Q4_K_M.gguf", "dflash-m-Q4_K_M.gguf"


@dataclass
class Library:
    """What one test pulls into."""

    hub: HubServer
    models_dir: Path
    index: Index
    said: list[Event] = field(default_factory=list)
    is_fetching_head: asyncio.Event = field(default_factory=asyncio.Event)

    async def pull(self, reference: str = "org/repo:Q4_K_M", *, with_head: bool = True) -> Path:
        wanted = parse_reference(reference, self.hub.url)
        assert isinstance(wanted, RepoReference | FileReference)

        async def plan(session: HttpSession) -> PullPlan:
            return await plan_model_pull(session, wanted, self.models_dir, _largest, with_head=with_head)

        access, options = HubAccess(self.hub.url, ""), DownloadOptions(retry=IMPATIENT)
        self.said.clear()
        return await Puller(access, self.index, options, self._hear).pull(plan)

    def _hear(self, event: Event) -> None:
        self.said.append(event)
        if isinstance(event, Progress) and event.name == HEAD and event.n_done:
            self.is_fetching_head.set()

    def put(self, **files: bytes) -> None:
        """Replace the files of the repository."""
        self.hub.repos["org/repo"] = HubRepo.of("org/repo", dict(files))

    @property
    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.models_dir / "org" / "repo")) for path in self._below())

    def _below(self) -> list[Path]:
        return [path for path in (self.models_dir / "org" / "repo").rglob("*") if path.is_file()]


def _largest(repository: Repository) -> QuantChoice:
    return QuantChoice(repository.models[-1], "It is the largest.")


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("contents")
    heads = {kind: draft_head(folder / f"{kind}.gguf", kind) for kind in ("eagle3", "dflash", "dspark")}
    heads |= {"model": drafted_model(folder / "model.gguf"), "other": tiny_llama(folder / "other.gguf")}
    return {name: path.read_bytes() for name, path in heads.items()}


@pytest.fixture
def library(contents: dict[str, bytes], tmp_path: Path) -> Iterator[Library]:
    repo = HubRepo.of("org/repo", {MODEL: contents["model"], HEAD: contents["dflash"]})
    with HubServer(repo) as hub, Index(tmp_path) as index:
        yield Library(hub, tmp_path / "models", index)


async def test_a_head_comes_after_its_model_with_its_hash(library: Library, contents: dict[str, bytes]) -> None:
    path = await library.pull()
    head = path.with_name(HEAD)
    sha256 = library.hub.repos["org/repo"].files[HEAD].sha256
    assert (path.name, library.files) == (MODEL, [HEAD, MODEL])
    assert head.read_bytes() == contents["dflash"]
    assert library.index.sha256(head) == sha256
    assert library.said[-1] == HeadAdded(str(head), MODEL, len(contents["dflash"]), (sha256,), is_new=True)
    chosen = [event.name for event in library.said if isinstance(event, Chosen)]
    assert chosen == [MODEL, HEAD]
    kinds = [event.kind for event in library.said]
    assert kinds.index("done") < [event.kind for event in library.said].index("head_added")


async def test_what_is_there_is_not_fetched_again(library: Library) -> None:
    await library.pull()
    n_sent = library.hub.n_sent()
    await library.pull()
    assert library.hub.n_sent() == n_sent
    assert isinstance(added := library.said[-1], HeadAdded)
    assert not added.is_new


async def test_no_head_is_fetched_if_it_is_not_wanted(library: Library) -> None:
    await library.pull(with_head=False)
    assert library.files == [MODEL]
    assert isinstance(library.said[-1], Done)


@pytest.mark.parametrize(
    ("content", "reason"),
    [("other", "is not a draft head: it is a llama model"), ("short", "truncated"), ("noise", "GGUF")],
)
async def test_an_invalid_head_costs_the_head_and_not_the_model(
    library: Library, contents: dict[str, bytes], content: str, reason: str
) -> None:
    damaged = {"short": contents["dflash"][:-4096], "noise": b"noise" * 1000, "other": contents["other"]}
    library.put(**{MODEL: contents["model"], HEAD: damaged[content]})
    path = await library.pull()
    assert path.read_bytes() == contents["model"]
    assert library.files == [MODEL]
    assert isinstance(left := library.said[-1], HeadLeftOut)
    assert (left.name, left.model) == (HEAD, MODEL)
    assert reason in left.reason


async def test_a_head_of_another_model_is_left_out_with_the_reason(
    library: Library, contents: dict[str, bytes]
) -> None:
    library.put(**{MODEL: contents["other"], HEAD: contents["dflash"]})
    path = await library.pull()
    assert (path.name, library.files) == (MODEL, [MODEL])
    assert isinstance(left := library.said[-1], HeadLeftOut)
    assert f"{HEAD} cannot draft for {MODEL}" in left.reason


async def test_a_head_that_cannot_be_fetched_is_left_out_and_comes_with_the_next_pull(library: Library) -> None:
    library.hub.inject("truncation", times=40, at=0.5, skip=1, stage="content")
    path = await library.pull()
    assert path.is_file()
    assert isinstance(library.said[-1], HeadLeftOut)
    assert not path.with_name(HEAD).exists()
    library.hub.injections.clear()
    await library.pull()
    resumed = next(event for event in library.said if isinstance(event, Fetching))
    assert resumed.name == HEAD
    assert resumed.n_done > 0, "what came the first time is kept"
    assert isinstance(library.said[-1], HeadAdded)
    assert library.files == [HEAD, MODEL]


async def test_an_interrupted_pull_leaves_the_model_and_resumes_the_head(library: Library) -> None:
    library.hub.bytes_per_s = 400_000
    pulling = asyncio.create_task(library.pull())
    async with asyncio.timeout(60):
        await library.is_fetching_head.wait()
    pulling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pulling
    folder = library.models_dir / "org" / "repo"
    assert (folder / MODEL).is_file()
    assert not (folder / HEAD).exists()
    library.hub.bytes_per_s = 0
    await library.pull()
    assert next(event.n_done for event in library.said if isinstance(event, Fetching)) > 0
    assert library.files == [HEAD, MODEL]


async def test_a_file_of_the_user_under_the_name_of_the_head_stays(library: Library) -> None:
    mine = library.models_dir / "org" / "repo" / HEAD
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    path = await library.pull()
    assert mine.read_bytes() == b"mine"
    assert path.is_file()
    assert isinstance(left := library.said[-1], HeadLeftOut)
    assert "another file" in left.reason


async def test_a_head_in_a_folder_of_the_repository_lies_beside_the_model(
    library: Library, contents: dict[str, bytes]
) -> None:
    heads = {"Q8_0/dspark-m.gguf": contents["dspark"], "eagle3-m.gguf": contents["eagle3"]}
    library.put(
        **{"Q4_K_M/m-Q4_K_M.gguf": contents["model"], "Q4_K_M/dspark-m-Q4_K_M.gguf": contents["dspark"]}, **heads
    )
    await library.pull()
    assert library.files == ["dspark-m-Q4_K_M.gguf", MODEL]


async def test_a_head_can_be_fetched_by_its_name(library: Library) -> None:
    path = await library.pull(f"org/repo/{HEAD}")
    assert (path.name, library.files) == (HEAD, [HEAD])
    assert [event.kind for event in library.said if isinstance(event, HeadAdded | HeadLeftOut)] == []


async def test_a_disk_that_refuses_the_model_is_an_error_as_ever(library: Library) -> None:
    mine = library.models_dir / "org" / "repo" / MODEL
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    with pytest.raises(StorageError):
        await library.pull()
    assert library.files == [MODEL]
