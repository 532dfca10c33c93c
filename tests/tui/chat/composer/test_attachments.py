"""What can be attached: pasted texts, files below a folder, and files elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tui.chat.composer.attachments import complete_path, files_below, is_long, pasted


def test_a_paste_is_long_by_its_letters_or_its_lines() -> None:
    assert not is_long("x" * 1000)
    assert is_long("x" * 1001)
    assert not is_long("\n" * 11)
    assert is_long("\n" * 12)


def test_pasted_texts_have_names_of_their_own() -> None:
    first = pasted("a", [])
    second = pasted("b", [first])
    assert (first.name, second.name, pasted("c", [second]).name) == ("pasted 1", "pasted 2", "pasted 1")


def test_files_are_found_nearest_first_and_noise_is_passed_over(tmp_path: Path) -> None:
    for name in ("b.txt", "a/deep/c.py", "a/d.py", ".git/config", "node_modules/x.js", ".env"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert files_below(tmp_path) == ["b.txt", "a/d.py", "a/deep/c.py"]


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "secret").symlink_to("/etc/passwd")
    assert files_below(tmp_path) == []


def test_a_folder_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert files_below(tmp_path / "nowhere") == []


@pytest.mark.skipif(os.name == "nt", reason="pipes with a name are files elsewhere")
def test_a_pipe_is_no_completion(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pine").write_text("a tree")
    assert complete_path("pi", tmp_path) == ["pine"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    (folder / "src").mkdir(parents=True)
    for name in ("notes.txt", "my notes.txt", "src/main.py", ".hidden", "../outside.txt"):
        (folder / name).write_text(name)
    return folder


def test_an_unfinished_name_becomes_files_and_folders(folder: Path) -> None:
    assert complete_path("", folder) == ["my notes.txt", "notes.txt", "src/"]
    assert complete_path("no", folder) == ["notes.txt"]
    assert complete_path("src/", folder) == ["src/main.py"]
    assert complete_path(".h", folder) == [".hidden"]
    assert complete_path("../o", folder) == ["../outside.txt"]
    assert complete_path("nothing/", folder) == []
