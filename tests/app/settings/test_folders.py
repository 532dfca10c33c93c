from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.settings.folders import cache_warning, find_folders
from app.settings.private_files import find_private_files, keep_private, mark_in_use, users_of
from app.settings.settings import Settings
from quantizer.system.errors import StorageError


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config" / "config.toml"))
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")


def test_folders_that_can_be_written_have_no_problem_and_are_not_made(settings: Settings, tmp_path: Path) -> None:
    folders = find_folders(settings)
    assert [folder.what for folder in folders] == ["data", "cache", "settings"]
    assert [folder.problem for folder in folders] == ["", "", ""]
    assert cache_warning(settings.cache_dir) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("index", range(3))
def test_a_folder_that_is_a_file_is_named_with_a_remedy(settings: Settings, tmp_path: Path, index: int) -> None:
    folder = find_folders(settings)[index]
    folder.path.write_text("a file", encoding="utf-8")
    found = find_folders(settings)
    assert [each.what for each in found if each.problem] == [folder.what]
    assert str(folder.path) in found[index].problem
    assert "is a file" in found[index].problem
    assert "LOCALLLM_" in found[index].remedy


def test_a_warning_names_the_cause_what_is_lost_and_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    warning = cache_warning(tmp_path / "file" / "cache")
    assert f"{tmp_path / 'file'} is a file" in warning
    assert "prefixes of chats" in warning
    assert "LOCALLLM_CACHE_DIR" in warning


def test_a_cache_that_is_a_file_stays_one_and_ends_nothing(settings: Settings, tmp_path: Path) -> None:
    settings.cache_dir.write_text("a file", encoding="utf-8")
    settings.cache_dir.chmod(0o644)
    assert keep_private(settings) == []
    assert settings.cache_dir.stat().st_mode & 0o777 == 0o644
    with mark_in_use(settings):
        assert users_of(settings) == []
    assert find_private_files(settings) == ()


def test_a_folder_that_cannot_be_listed_is_not_said_to_hold_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: object) -> None:
        raise PermissionError(13, "Permission denied")

    settings.cache_dir.mkdir()
    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(StorageError, match="cannot be listed"):
        find_private_files(replace(settings, data_dir=settings.cache_dir))
