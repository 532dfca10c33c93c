"""Which folders the person trusts: remembered by their resolved paths, for the owner alone to read and change."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from app.tools.trust import TrustedFolders, trusted_folders
from quantizer.system.errors import UserError


@pytest.fixture
def trusted(tmp_path: Path) -> TrustedFolders:
    return TrustedFolders(tmp_path / "config" / "trusted.json")


def test_no_folder_is_trusted_until_the_person_says_so_and_it_is_remembered(
    trusted: TrustedFolders, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    (project / "inner").mkdir(parents=True)
    assert not trusted.has(project)
    trusted.trust(project)
    again = TrustedFolders(trusted.path)
    assert again.has(project)
    assert again.has(project / "inner" / "..")
    assert not again.has(project / "inner")
    again.distrust(project)
    assert not trusted.has(project)
    with pytest.raises(UserError, match="is not trusted"):
        trusted.distrust(project)


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_only_its_owner_reads_the_file(trusted: TrustedFolders, tmp_path: Path) -> None:
    trusted.trust(tmp_path)
    assert stat.S_IMODE(trusted.path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.name == "nt", reason="links need a right")
def test_a_link_to_another_folder_is_that_folder(trusted: TrustedFolders, tmp_path: Path) -> None:
    good, bad, link = tmp_path / "good", tmp_path / "bad", tmp_path / "link"
    good.mkdir()
    bad.mkdir()
    link.symlink_to(good)
    trusted.trust(link)
    link.unlink()
    link.symlink_to(bad)
    assert trusted.has(good)
    assert not trusted.has(link)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"folders": 1}', '{"folders": [1]}', "[" * 100_000, "7"])
def test_a_damaged_file_trusts_nothing_and_says_so(trusted: TrustedFolders, tmp_path: Path, text: str) -> None:
    trusted.path.parent.mkdir()
    trusted.path.write_text(text)
    with pytest.raises(UserError, match="is damaged"):
        trusted.has(tmp_path)


def test_the_file_is_beside_the_settings(tmp_path: Path) -> None:
    environment = {"LOCALLLM_CONFIG": str(tmp_path / "config.toml")}
    assert trusted_folders(environment).path == tmp_path / "trusted.json"
