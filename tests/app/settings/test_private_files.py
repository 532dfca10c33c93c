from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

import pytest

from app.settings import private_files
from app.settings.private_files import CHATS, find_private_files, keep_private, mark_in_use, remove_files, users_of
from app.settings.settings import Settings

has_modes = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
FILES = (
    *("data/chats.db", "data/chats.db-wal", "data/responses.db", "data/jobs/1.log", "data/presets.toml"),
    *(
        "cache/prefix/weights/state",
        "cache/media/weights/picture",
        "cache/corpus/project/text-chat",
        "cache/service.log",
        "cache/crash-1.txt",
        "cache/imatrix/x.gguf",
    ),
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A folder that an earlier version made: others may read everything in it."""
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(10))
        path.chmod(0o644)
    for folder, names, _ in os.walk(tmp_path):
        for name in names:
            Path(folder, name).chmod(0o755)
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


def _open_to_others(folder: Path) -> list[str]:
    paths = (path for root in ("data", "cache") for path in (folder / root, *(folder / root).rglob("*")))
    return [str(path.relative_to(folder)) for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077]


@has_modes
def test_what_was_made_with_wider_rights_is_made_private_and_named(settings: Settings, tmp_path: Path) -> None:
    sentences = keep_private(settings)
    assert _open_to_others(tmp_path) == []
    assert f"Others could enter {settings.data_dir} (1 made private)." in sentences
    assert "Others could read saved prefixes (1 made private)." in sentences
    assert "Others could read encoded pictures and sounds (1 made private)." in sentences
    assert keep_private(settings) == []


@has_modes
@pytest.mark.parametrize("name", ["bandwidth", "devices", "loads", "selftest", "tune"])
def test_a_folder_with_measurements_of_ours_is_made_private(settings: Settings, name: str) -> None:
    (settings.cache_dir / f"{name}.json").touch()
    keep_private(settings)
    assert stat.S_IMODE(settings.cache_dir.stat().st_mode) == 0o700


@has_modes
def test_a_folder_with_files_of_other_programs_keeps_its_rights(settings: Settings, tmp_path: Path) -> None:
    (settings.data_dir / "notes.txt").touch(0o644)
    sentences = keep_private(settings)
    assert sorted(_open_to_others(tmp_path)) == ["data", "data/notes.txt"]
    assert any("notes.txt" in sentence for sentence in sentences)


def test_folders_that_are_missing_are_private_enough(tmp_path: Path) -> None:
    assert keep_private(Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")) == []


def test_what_derives_from_chats_is_found_by_kind_and_removed(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "data" / "keys.json").touch()
    found = {files.what: files for files in find_private_files(settings)}
    assert (len(found[CHATS].paths), found[CHATS].n_bytes) == (2, 20)
    for files in found.values():
        remove_files(files)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"data/keys.json", "data/presets.toml", "cache/imatrix/x.gguf"}
    assert not (settings.cache_dir / "prefix" / "weights").exists()
    assert not (settings.cache_dir / "media" / "weights").exists()


def test_files_are_in_use_while_a_process_says_so(settings: Settings) -> None:
    with mark_in_use(settings):
        assert users_of(settings) == [str(os.getpid())]
    assert users_of(settings) == []


def test_the_mark_of_a_killed_process_counts_no_longer(settings: Settings) -> None:
    mark = settings.cache_dir / "in-use-999999999"
    mark.touch()
    assert users_of(settings) == []
    assert not mark.exists()


def test_a_cache_that_cannot_be_listed_is_said_and_does_not_keep_the_service_from_starting(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_private(settings)
    listed = private_files.sorted_glob

    def fails(folder: Path, *patterns: str) -> list[Path]:
        if patterns == ("prefix/*/*",):
            raise OSError(errno.EIO, "Input/output error")
        return listed(folder, *patterns)

    monkeypatch.setattr(private_files, "sorted_glob", fails)
    assert keep_private(settings) == ["Others may read saved prefixes, which cannot be changed: Input/output error."]
    with pytest.raises(OSError, match="Input/output"):
        find_private_files(settings)  # "nothing" would be a guess


def test_a_mark_of_a_process_whose_number_another_one_has_now_is_removed(settings: Settings) -> None:
    mark = settings.cache_dir / f"in-use-{os.getpid()}"
    mark.write_text("1")  # when it started: long before this process

    assert users_of(settings) == []
    assert not mark.exists()


def test_a_mark_of_a_former_version_says_no_start(settings: Settings) -> None:
    (settings.cache_dir / f"in-use-{os.getpid()}").touch()

    assert users_of(settings) == [str(os.getpid())]
