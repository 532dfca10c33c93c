from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.library.download.downloader import DownloadOptions
from app.library.download.events import Chosen, Event, ProjectorAdded, ProjectorLeftOut
from app.library.download.http_session import HttpSession
from app.library.hub.access import HubAccess
from app.library.hub.reference import RepoReference, parse_reference
from app.library.hub.repository import Repository
from app.library.hub.selection import QuantChoice
from app.library.local.index import Index
from app.library.local.model_files import ModelRef
from app.library.local.removal import plan_removal
from app.library.pulling.puller import Puller, PullPlan, plan_model_pull
from app.service.models.model_file import read_model_file
from tests.app.library.fetching import IMPATIENT
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_projectors import tiny_projector

MODEL = "m-it-Q4_K_M.gguf"


@dataclass
class Library:
    """What one test pulls into."""

    hub: HubServer
    models_dir: Path
    index: Index
    said: list[Event] = field(default_factory=list)

    async def pull(self, projector: str = "") -> Path:
        wanted = parse_reference("org/repo:Q4_K_M", self.hub.url)
        assert isinstance(wanted, RepoReference)

        async def plan(session: HttpSession) -> PullPlan:
            return await plan_model_pull(session, wanted, self.models_dir, _largest, projector=projector)

        access, options = HubAccess(self.hub.url, ""), DownloadOptions(retry=IMPATIENT)
        self.said.clear()
        return await Puller(access, self.index, options, self.said.append).pull(plan)

    def put(self, files: dict[str, bytes]) -> None:
        self.hub.repos["org/repo"] = HubRepo.of("org/repo", files)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.models_dir / "org" / "repo").iterdir())


def _largest(repository: Repository) -> QuantChoice:
    return QuantChoice(repository.models[-1], "It is the largest.")


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("contents")
    made = {
        "model": tiny_llama(folder / "model.gguf"),
        "fits": tiny_projector(folder / "fits.gguf"),
        "wide": tiny_projector(folder / "wide.gguf", n_embd=96),
    }
    return {name: path.read_bytes() for name, path in made.items()}


@pytest.fixture
def library(contents: dict[str, bytes], tmp_path: Path) -> Iterator[Library]:
    types = ("BF16", "F16", "F32", "Q8_0")
    files = {MODEL: contents["model"], **{f"mmproj-{name}.gguf": contents["fits"] for name in types}}
    with HubServer(HubRepo.of("org/repo", files)) as hub, Index(tmp_path) as index:
        yield Library(hub, tmp_path / "models", index)


async def test_a_model_comes_with_its_projector_and_sees(library: Library, contents: dict[str, bytes]) -> None:
    path = await library.pull()
    assert library.files == [MODEL, "mmproj-F16.gguf"]
    projector = path.with_name("mmproj-F16.gguf")
    sha256 = library.hub.repos["org/repo"].files[projector.name].sha256
    assert library.said[-1] == ProjectorAdded(str(projector), MODEL, len(contents["fits"]), (sha256,), is_new=True)
    assert library.index.sha256(projector) == sha256
    assert read_model_file(path).projector_path == str(projector)


async def test_the_other_types_are_offered(library: Library) -> None:
    await library.pull()
    reasons = [event.reason for event in library.said if isinstance(event, Chosen)]
    assert reasons[-1] == f"With it {MODEL} sees or hears. Also there, for --projector: BF16, Q8_0, F32."


@pytest.mark.parametrize("name", ["Q8_0", "BF16", "F32"])
async def test_a_type_is_chosen(library: Library, name: str) -> None:
    await library.pull(name)
    assert library.files == sorted([MODEL, f"mmproj-{name}.gguf"])


async def test_none_leaves_it_out(library: Library) -> None:
    await library.pull("none")
    assert library.files == [MODEL]


async def test_what_is_there_is_not_fetched_again(library: Library) -> None:
    await library.pull()
    n_sent = library.hub.n_sent()
    await library.pull()
    assert library.hub.n_sent() == n_sent
    assert isinstance(added := library.said[-1], ProjectorAdded)
    assert not added.is_new


async def test_a_projector_of_another_model_is_left_out_with_the_reason(
    library: Library, contents: dict[str, bytes]
) -> None:
    library.put({MODEL: contents["model"], "mmproj-F16.gguf": contents["wide"]})
    await library.pull()
    assert library.files == [MODEL]
    assert isinstance(left := library.said[-1], ProjectorLeftOut)
    assert "its embeddings are 96 wide" in left.reason


async def test_the_projector_that_names_the_model_comes_before_a_better_type(
    library: Library, contents: dict[str, bytes]
) -> None:
    names = ("mmproj-other-F16.gguf", "mmproj-m-it-Q8_0.gguf")
    library.put({MODEL: contents["model"], **dict.fromkeys(names, contents["fits"])})
    await library.pull()
    assert library.files == [MODEL, "mmproj-m-it-Q8_0.gguf"]


async def test_it_goes_with_the_last_model_of_its_folder(library: Library) -> None:
    path = await library.pull()
    removal = plan_removal(ModelRef("m", path, "org/repo"), library.models_dir)
    assert sorted(Path(each).name for each in removal.paths) == library.files
