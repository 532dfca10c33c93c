from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.library.local import placement
from app.library.local.index import Index
from app.library.local.model_files import ModelRef
from app.library.local.model_sampling import generation_config_path
from app.library.local.placement import copy_model, link_model, plan_import
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import StorageError
from tests.app.external_folders import ollama_model
from tests.app.small_models import small_model, small_shards
from tests.patience import PATIENCE_S

COPIES = """
import sys, time
from pathlib import Path
from app.library.local import placement
from app.library.local.index import Index
from app.library.local.model_files import ModelRef
placement._BLOCK_BYTES = placement._PIECE_BYTES = 1 << 16
source, models, cache = map(Path, sys.argv[1:4])
planned = placement.plan_import(ModelRef("m", source), "", models)
with Index(cache) as index:
    placement.copy_model(planned, index, lambda n: (print(n, flush=True), time.sleep(float(sys.argv[4]))))
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "cache") as opened:
        yield opened


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def _ref(path: Path) -> ModelRef:
    return ModelRef(path.stem, path)


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_a_hard_link_takes_no_bytes_and_outlives_the_original(tmp_path: Path, models: Path, index: Index) -> None:
    source = small_model(tmp_path / "m.gguf")
    planned = plan_import(_ref(source), "", models)
    assert link_model(planned, index) == "hard link"
    assert planned.path.samefile(source)
    source.unlink()
    assert planned.path.read_bytes().startswith(b"GGUF")


def test_a_blob_of_ollamas_is_linked_under_its_name_with_its_hash(tmp_path: Path, models: Path, index: Index) -> None:
    blob = ollama_model(tmp_path / "ollama", "registry.ollama.ai/library/llama3.2/3b")
    planned = plan_import(ModelRef("llama3.2:3b", blob, "ollama/llama3.2", "Ollama"), "", models)
    link_model(planned, index)
    assert _files(models) == ["ollama/llama3.2/llama3.2-3b.gguf"]
    assert index.sha256(planned.path) == blob.name.removeprefix("sha256-")


def _refuse(*_: object) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@pytest.fixture
def no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another disk."""
    monkeypatch.setitem(placement._WAYS, "hard link", _refuse)
    monkeypatch.setitem(placement._WAYS, "reflink", _refuse)


@pytest.mark.usefixtures("no_hard_links")
def test_on_another_disk_a_model_is_referred_to(tmp_path: Path, models: Path, index: Index) -> None:
    source = small_model(tmp_path / "m.gguf")
    planned = plan_import(_ref(source), "", models)
    assert link_model(planned, index) == placement.REFERENCE
    assert planned.path.readlink() == source


@pytest.mark.usefixtures("no_hard_links")
def test_where_nothing_can_be_linked_copying_is_named_and_nothing_is_left(
    tmp_path: Path, models: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(placement._WAYS, placement.REFERENCE, _refuse)
    planned = plan_import(_ref(small_model(tmp_path / "m.gguf")), "", models)
    with pytest.raises(StorageError, match="--copy"):
        link_model(planned, index)
    assert list(models.rglob("*")) == []


def test_a_reflink_that_the_disk_refuses_leaves_nothing(tmp_path: Path) -> None:
    source = small_model(tmp_path / "m.gguf")
    try:
        placement._reflink(source, tmp_path / "clone.gguf")
    except OSError:
        assert _files(tmp_path) == ["m.gguf"]
    else:  # a file system that shares blocks
        assert (tmp_path / "clone.gguf").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_where_the_system_has_no_reflinks_a_model_is_referred_to(
    tmp_path: Path, models: Path, index: Index, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    """Simulated: only that the way is left out, not what another system's links are like."""
    monkeypatch.setitem(placement._WAYS, "hard link", _refuse)
    planned = plan_import(_ref(small_model(tmp_path / "m.gguf")), "", models)
    monkeypatch.setattr(sys, "platform", platform)
    assert link_model(planned, index) == placement.REFERENCE


def test_all_files_of_a_split_model_are_linked_or_none(
    tmp_path: Path, models: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan_import(_ref(small_shards(tmp_path / "big.gguf", 3)[0]), "me/big", models)
    real = placement.link

    def fails_at_last(source: Path, target: Path) -> str:
        return real(source, tmp_path if "00001-of" in target.name else target)

    with monkeypatch.context() as patched:
        patched.setattr(placement, "link", fails_at_last)
        with pytest.raises(StorageError):
            link_model(planned, index)
    assert list(models.rglob("*")) == []
    link_model(planned, index)
    assert len(_files(models)) == 3


def test_nothing_that_is_there_is_replaced(tmp_path: Path, models: Path) -> None:
    small_model(models / "local" / "m" / "m.gguf")
    with pytest.raises(StorageError, match="exists already"):
        plan_import(_ref(small_model(tmp_path / "m.gguf")), "", models)


def test_an_invalid_model_is_not_imported(tmp_path: Path, models: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError):
        plan_import(_ref(tmp_path / "m.gguf"), "", models)
    assert not models.exists()


def test_a_copy_is_whole_has_its_hash_and_counts_its_bytes(tmp_path: Path, models: Path, index: Index) -> None:
    paths = small_shards(tmp_path / "big.gguf", 3)
    planned = plan_import(_ref(paths[0]), "", models)
    counted: list[int] = []
    copy_model(planned, index, counted.append)
    assert sum(counted) == planned.n_bytes
    for source, (_, target) in zip(paths, planned.files, strict=True):
        assert target.read_bytes() == source.read_bytes()
        assert not target.samefile(source)
        assert index.sha256(target) == hashlib.sha256(source.read_bytes()).hexdigest()


def test_a_blob_whose_bytes_went_bad_is_not_copied(tmp_path: Path, models: Path, index: Index) -> None:
    blob = ollama_model(tmp_path / "ollama", "registry.ollama.ai/library/m/latest")
    blob.write_bytes(blob.read_bytes().replace(b"small", b"smell"))
    planned = plan_import(ModelRef("m:latest", blob, "ollama/m", "Ollama"), "", models)
    with pytest.raises(ModelFileError, match="damaged"):
        copy_model(planned, index, lambda _: None)
    assert list(models.rglob("*")) == []


def test_a_copy_for_which_there_is_no_room_is_refused_with_the_numbers(
    tmp_path: Path, models: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    planned = plan_import(_ref(small_model(tmp_path / "m.gguf")), "", models)
    with pytest.raises(StorageError, match=r"0\.000 GB is free"):
        copy_model(planned, index, lambda _: None)
    assert list(models.rglob("*")) == []


@pytest.mark.slow
def test_a_killed_copy_resumes(tmp_path: Path, models: Path) -> None:
    source = small_model(tmp_path / "m.gguf")
    with source.open("ab") as file:
        file.write(os.urandom(4 << 20))
    command = [sys.executable, "-P", "-c", COPIES, *map(str, (source, models, tmp_path / "cache", 0.03))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        for _ in range(20):
            killed.stdout.readline()
        killed.kill()
    target = models / "local" / "m" / "m.gguf"
    assert not target.exists()
    [partial] = target.parent.glob("*.partial")
    n_standing = partial.stat().st_size
    assert n_standing > 0
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_S)
    assert target.read_bytes() == source.read_bytes()
    assert _files(models) == ["local/m/m.gguf"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
def test_an_interrupted_copy_leaves_nothing(tmp_path: Path, models: Path) -> None:
    source = small_model(tmp_path / "m.gguf")
    with source.open("ab") as file:
        file.write(bytes(16 << 20))
    command = [sys.executable, "-P", "-c", COPIES, *map(str, (source, models, tmp_path / "cache", 60))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as interrupted:
        assert interrupted.stdout is not None
        interrupted.stdout.readline()
        interrupted.send_signal(signal.SIGINT)
    assert interrupted.returncode != 0
    assert list(models.rglob("*")) == []


@pytest.mark.parametrize("name", ["m.generation_config.json", "generation_config.json"])
@pytest.mark.parametrize("is_copy", [True, False])
def test_what_its_makers_recommend_comes_with_a_model(
    tmp_path: Path, models: Path, index: Index, name: str, is_copy: bool
) -> None:
    source = small_model(tmp_path / "from" / "m.gguf")
    (tmp_path / "from" / name).write_text('{"temperature": 0.6}')
    planned = plan_import(_ref(source), "", models)
    if is_copy:
        copy_model(planned, index, lambda _n_bytes: None)
    else:
        link_model(planned, index)
    assert generation_config_path(planned.path).read_text() == '{"temperature": 0.6}'
