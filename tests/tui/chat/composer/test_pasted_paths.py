"""The files that a paste names: the forms of terminals and file managers, and what is just text."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tui.chat.composer.attachments import pasted_paths

pytestmark = pytest.mark.skipif(os.name == "nt", reason="paths have other forms there")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "my pic.png", "it's.png", "naïve.png"):
        (tmp_path / name).write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    "form",
    [
        "{0}/my pic.png",
        "'{0}/my pic.png' ",
        '"{0}/my pic.png"\n',
        "{0}/my\\ pic.png ",
        "file://{0}/my%20pic.png\r\n",
        "file://localhost{0}/my%20pic.png",
        f"file://{socket.gethostname()}{{0}}/my%20pic.png",
    ],
)
def test_a_path_is_found_in_the_form_of_any_terminal(folder: Path, form: str) -> None:
    assert pasted_paths(form.format(folder)) == (folder / "my pic.png",)


def test_several_files_stand_in_a_row_or_one_a_line(folder: Path) -> None:
    both = (folder / "a.png", folder / "it's.png")
    assert pasted_paths(f"{folder}/a.png '{folder}/it'\\''s.png' ") == both
    assert pasted_paths(f"{folder}/a.png\n{folder}/it's.png\n") == both
    assert pasted_paths(f"file://{folder}/a.png\r\nfile://{folder}/it%27s.png\r\n") == both
    assert pasted_paths(f"{folder}/a.png {folder}/a.png") == (folder / "a.png",)


def test_a_path_in_the_home_folder_may_begin_with_a_tilde(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert pasted_paths("~/naïve.png") == (folder / "naïve.png",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.png",
        "look at {0}/a.png",
        "{0}/a.png is it",
        "{0}",
        "{0}/none.png",
        "'{0}/a.png",
        "file://elsewhere{0}/a.png",
        "file://[broken{0}/a.png",
        "//server/share/a.png",
        "~nobody-here/a.png",
        "/dev/zero",
        "/" + "x" * 5000,
        "{0}/a.png " * 4000,
    ],
)
def test_anything_else_is_text(folder: Path, text: str) -> None:
    assert pasted_paths(text.format(folder)) == ()
