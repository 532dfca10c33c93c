from __future__ import annotations

import os
from pathlib import Path

import pytest

from quantizer.errors import StorageError, UsageError
from tui.chat.composer.attachments import MAX_ATTACHED_BYTES, files_below, read_text_file


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


def test_a_text_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("\ufeffgrün\n".encode())
    assert read_text_file(tmp_path / "a", "a").content == "grün\n"


@pytest.mark.parametrize(
    "data", [b"\x89PNG\r\n\x1a\n\x00", b"\xff\xfe", b"text\0with", b"x" * (MAX_ATTACHED_BYTES + 1)]
)
def test_what_is_no_text_or_too_large_is_refused_in_words(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(UsageError, match="a is"):
        read_text_file(tmp_path / "a", "a")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"notes.md cannot be read"):
        read_text_file(tmp_path / "notes.md", "notes.md")
