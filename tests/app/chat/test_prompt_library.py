"""The prompt library: which files it offers, and what it refuses to read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.chat.presets import MAX_PROMPT_BYTES, PromptLibrary
from quantizer.system.errors import StorageError, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prompts").mkdir()
    return tmp_path / "prompts"


def test_text_files_are_prompts_by_their_name_without_the_ending(folder: Path) -> None:
    for name in ("summary.md", "code review.txt", ".hidden.md", "notes.pdf"):
        (folder / name).write_text(f"About {{{{topic}}}}: {name}\n")
    library = PromptLibrary(folder.parent)
    assert library.names() == ("code review", "summary")
    assert library.get("summary") == "About {{topic}}: summary.md"


def test_without_a_folder_there_are_no_prompts_and_the_refusal_says_where_to_write_one(tmp_path: Path) -> None:
    assert PromptLibrary(tmp_path).names() == ()
    with pytest.raises(UsageError, match=r"no prompt summary.*prompts"):
        PromptLibrary(tmp_path).get("summary")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sub/deep", "", "summary.md"])
def test_a_name_that_leads_elsewhere_is_unknown(folder: Path, name: str) -> None:
    (folder / "summary.md").write_text("text")
    (folder.parent / "secret.md").write_text("secret")
    with pytest.raises(UsageError, match="Prompts: summary"):
        PromptLibrary(folder.parent).get(name)


@pytest.mark.skipif(os.name == "nt", reason="needs FIFOs and links")
def test_a_fifo_or_a_link_is_no_prompt_and_never_opened(folder: Path) -> None:
    os.mkfifo(folder / "pipe.md")
    (folder / "link.md").symlink_to("/etc/hostname")
    (folder / "folder.md").mkdir()
    assert PromptLibrary(folder.parent).names() == ()


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"x" * (MAX_PROMPT_BYTES + 1), "larger than 64 KiB"), (b"caf\xe9", "not UTF-8: byte 3")],
)
def test_a_prompt_that_is_too_large_or_no_text_is_refused(folder: Path, data: bytes, reason: str) -> None:
    (folder / "bad.md").write_bytes(data)
    with pytest.raises(UsageError, match=reason):
        PromptLibrary(folder.parent).get("bad")


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("a file")
    with pytest.raises(StorageError, match="cannot be read"):
        PromptLibrary(tmp_path).names()
