from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from app.engine.load.draft_copy import copy_metadata, copy_path
from app.library.local.removal import delete_stale_files, find_stale_files
from app.settings.settings import Settings
from quantizer.system.files import try_lock
from quantizer.write.partial_output import Journal
from tests.app.small_models import small_model
from tests.quantizer.gguf_files import tiny_llama

NOBODY = 4_000_000  # no process has this number: Linux ends before, and others do not get so far in a test
PLENTY = 1 << 40


def _nothing_came(_: Path) -> bool:
    return False


@pytest.fixture
def library(tmp_path: Path) -> Settings:
    made = Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")
    small_model(made.models_dir / "me" / "x" / "m.gguf")
    return made


def _file(path: Path, n_bytes: int = 10, age_s: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(n_bytes))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_a_tidy_library_has_no_leftovers(library: Settings) -> None:
    assert find_stale_files(library, PLENTY, _nothing_came) == ()


def test_what_a_killed_run_wrote_goes_and_models_stay(library: Settings) -> None:
    folder = library.models_dir / "me" / "x"
    _file(folder / ".new.gguf.0.partial", 100)
    _file(folder / ".new.gguf.1.partial", 50)
    _file(folder / ".new.gguf.journal", 5)
    [leftover] = find_stale_files(library, PLENTY, _nothing_came)
    assert leftover.n_bytes == 155
    assert delete_stale_files(leftover)
    assert [path.name for path in folder.iterdir()] == ["m.gguf"]


def test_what_a_running_process_writes_stays(library: Settings) -> None:
    folder = library.models_dir / "me" / "x"
    partial = _file(folder / ".new.gguf.0.partial", 100)
    journal = Journal(folder / "new.gguf")
    assert find_stale_files(library, PLENTY, _nothing_came) == ()
    journal.close()
    [leftover] = find_stale_files(library, PLENTY, _nothing_came)
    resumed = Journal(folder / "new.gguf")
    assert not delete_stale_files(leftover)
    resumed.close()
    assert partial.exists()


def test_an_interrupted_download_goes_with_all_its_files_and_one_that_runs_stays(library: Settings) -> None:
    folder = library.models_dir / "org" / "new" / ".fetching"
    for name in ("big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "big-00002-of-00002.gguf.journal"):
        _file(folder / name, 100)
    other = _file(folder / "other.gguf", 50)
    lock = try_lock(folder / "other.gguf.lock")
    assert lock is not None
    [leftover] = find_stale_files(library, PLENTY, _nothing_came)
    assert (len(leftover.paths), leftover.n_bytes) == (3, 300)
    assert delete_stale_files(leftover)
    assert other.exists()
    lock.release()
    [leftover] = find_stale_files(library, PLENTY, _nothing_came)
    assert delete_stale_files(leftover)
    assert [path.name for path in library.models_dir.iterdir()] == ["me"]


def _checkpoint(library: Settings, age_days: float) -> Path:
    """A checkpoint of which one shard came, another in part, beside which a person put a note."""
    folder = library.data_dir / "checkpoints" / "org" / "check"
    for name in ("1.safetensors", "note.txt", ".fetching/2.safetensors", ".fetching/m.gguf.begun"):
        _file(folder / name, 100, age_s=age_days * 86_400)
    os.utime(folder / ".fetching", (time.time() - age_days * 86_400,) * 2)
    return folder


def _came(path: Path) -> bool:
    return path.suffix == ".safetensors"


def test_an_interrupted_checkpoint_is_stale_after_a_week_and_the_users_files_stay(library: Settings) -> None:
    folder = _checkpoint(library, age_days=9)
    [leftover] = find_stale_files(library, PLENTY, _came)
    assert (leftover.what, leftover.detail) == ("interrupted checkpoint", "org/check, untouched for 9 days")
    assert leftover.n_bytes == 300
    assert delete_stale_files(leftover)
    assert [path.name for path in folder.iterdir()] == ["note.txt"]


def test_an_interrupted_checkpoint_leaves_no_folders_where_nothing_else_is_in_them(library: Settings) -> None:
    folder = _checkpoint(library, age_days=9)
    (folder / "note.txt").unlink()
    [leftover] = find_stale_files(library, PLENTY, _came)
    delete_stale_files(leftover)
    assert not folder.parent.exists()


def test_a_checkpoint_that_somebody_may_go_on_with_stays(library: Settings) -> None:
    _checkpoint(library, age_days=6)
    assert find_stale_files(library, PLENTY, _came) == ()


def test_a_checkpoint_that_came_whole_stays_however_old(library: Settings) -> None:
    _file(library.data_dir / "checkpoints" / "org" / "check" / "1.safetensors", age_s=9e7)
    assert find_stale_files(library, PLENTY, _came) == ()


def test_a_checkpoint_that_is_taken_up_again_stays(library: Settings) -> None:
    folder = _checkpoint(library, age_days=9)
    [leftover] = find_stale_files(library, PLENTY, _came)
    lock = try_lock(folder / ".fetching" / "config.json.lock")
    assert lock is not None
    os.utime(folder / ".fetching", (0, 0))
    os.utime(lock.path, (0, 0))
    assert find_stale_files(library, PLENTY, _came) == ()
    assert not delete_stale_files(leftover)
    lock.release()
    assert (folder / ".fetching" / "2.safetensors").exists()


def test_other_hidden_files_are_not_stale(library: Settings) -> None:
    for name in (".DS_Store", ".gitattributes", ".partial", "m.gguf.0.partial"):
        _file(library.models_dir / "me" / "x" / name)
    assert find_stale_files(library, PLENTY, _nothing_came) == ()


def test_temporary_models_are_stale_after_a_day(library: Settings) -> None:
    old = _file(library.cache_dir / "run" / "old" / "model.gguf", 100, age_s=90_000)
    os.utime(old.parent, (0, 0))
    new = _file(library.cache_dir / "run" / "new" / "model.gguf", 100)
    [leftover] = find_stale_files(library, PLENTY, _nothing_came)
    delete_stale_files(leftover)
    assert not old.parent.exists()
    assert new.exists()


@pytest.mark.parametrize("name", [".tune.json.{}.0.tmp", "prefix/abc/.def.{}.0.tmp", "media/abc/.def.{}.0.tmp"])
def test_unfinished_files_go_when_their_process_is_gone(library: Settings, name: str) -> None:
    gone = _file(library.cache_dir / name.format(NOBODY))
    _file(library.cache_dir / name.format(os.getpid()))
    assert [leftover.paths for leftover in find_stale_files(library, PLENTY, _nothing_came)] == [(gone,)]


def test_saved_conversations_go_beyond_the_limit_the_least_recently_used_first(library: Settings) -> None:
    folders = [library.cache_dir / name for name in ("prefix", "media")]
    paths = [_file(folders[age // 10 % 2] / "model" / str(age), 100, age_s=age) for age in (10, 20, 30, 40)]
    found = find_stale_files(library, 250, _nothing_came)
    assert [leftover.paths for leftover in found] == [(path,) for path in paths[2:]]
    assert find_stale_files(library, 400, _nothing_came) == ()


def test_what_is_gone_already_is_no_fault(library: Settings) -> None:
    path = _file(library.cache_dir / f".tune.json.{NOBODY}.0.tmp")
    [leftover] = find_stale_files(library, PLENTY, _nothing_came)
    path.unlink()
    assert delete_stale_files(leftover)


def test_a_copy_that_drafts_stays_with_its_model_and_is_stale_without(library: Settings, tmp_path: Path) -> None:
    elsewhere = tiny_llama(tmp_path / "elsewhere.gguf", lambda writer: writer.add_name("another"))
    models = [library.models_dir / "me" / "x" / "m.gguf", elsewhere, tmp_path / "g.gguf"]
    models[2].write_bytes(b"gone soon")
    copies = []
    for model in models:
        path = copy_path(model, "Q2_K", library.cache_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = copy_metadata(model).items()
        copies.append(tiny_llama(path, lambda writer, rows=rows: [writer.add_string(*row) for row in rows]))
    models[2].unlink()
    damaged = _file(library.cache_dir / "drafts" / "0-Q2_K.gguf", 100)
    models[0].rename(models[0].with_name("renamed.gguf"))

    found = find_stale_files(library, PLENTY, _nothing_came)
    assert {leftover.paths for leftover in found} == {(copies[2],), (damaged,)}
    assert {leftover.detail for leftover in found} == {"g.gguf", "a damaged file"}
    assert all(map(delete_stale_files, found))
    assert sorted((library.cache_dir / "drafts").iterdir()) == sorted(copies[:2])


def test_what_a_killed_run_wrote_of_a_copy_goes(library: Settings) -> None:
    folder = library.cache_dir / "drafts"
    _file(folder / ".0-Q2_K.gguf.0.partial", 100)
    _file(folder / ".0-Q2_K.gguf.journal", 5)
    [leftover] = find_stale_files(library, PLENTY, _nothing_came)
    assert (leftover.what, leftover.n_bytes) == ("interrupted writing", 105)
