"""Attachments: pasted texts, files below a folder, and mentions of files."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.attachments.prompt import compose_prompt
from app.chat.conversation import Attachment
from quantizer.errors import StorageError, UsageError
from tui.chat.composer.attachments import (
    MAX_ATTACHED_BYTES,
    complete_path,
    files_below,
    is_long,
    pasted,
    read_text_file,
)


def test_a_paste_is_long_by_its_letters_or_its_lines() -> None:
    assert not is_long("x" * 1000)
    assert is_long("x" * 1001)
    assert not is_long("\n" * 11)
    assert is_long("\n" * 12)


def test_pasted_texts_have_names_of_their_own() -> None:
    first = pasted("a", [])
    second = pasted("b", [first])
    assert (first.name, second.name, pasted("c", [second]).name) == ("pasted 1", "pasted 2", "pasted 1")


def test_the_model_reads_the_texts_first() -> None:
    assert (
        compose_prompt("What is it?", [Attachment("notes.md", "Soup.\n")])
        == "notes.md:\n```\nSoup.\n```\n\nWhat is it?"
    )
    assert compose_prompt("Alone", []) == "Alone"


@given(st.text(alphabet="`a\n", max_size=40))
def test_no_text_ends_its_own_fence(content: str) -> None:
    lines = compose_prompt("q", [Attachment("n", content)]).split("\n")
    fence = lines[1]
    assert lines.count(fence) == 2
    assert fence not in content


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


@pytest.mark.skipif(os.name == "nt", reason="pipes with a name and sockets are files elsewhere")
def test_a_pipe_a_device_a_socket_and_a_folder_are_refused_and_nobody_waits_for_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    address = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(address))  # the path of a socket has 107 characters at most
        for path, kind in [(tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")]:
            with pytest.raises(UsageError, match=f"x is {kind}"):
                read_text_file(path, "x")
        with pytest.raises(UsageError, match="x is a socket"):
            read_text_file(address, "x")


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
