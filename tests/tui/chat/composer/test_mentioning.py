from __future__ import annotations

from pathlib import Path

import pytest

from tui.chat.composer.attachments import complete_path, mentioned_files, mentions, missing_mentions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    (folder / "src").mkdir(parents=True)
    for name in ("notes.txt", "my notes.txt", "src/main.py", ".hidden", "../outside.txt"):
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("What is in @notes.txt?", ["notes.txt"]),
        ("@src/main.py: explain, and @notes.txt too, @notes.txt.", ["src/main.py", "notes.txt"]),
        ('Sum up @"my notes.txt"!', ["my notes.txt"]),
        ("Write to me@notes.txt or @property, @@notes.txt, @ src", []),
        ("@src is a folder", []),
        ("@" + "x" * 5000, []),
        ("@nul\0.txt", []),
    ],
)
def test_a_word_behind_an_at_sign_is_a_file_where_there_is_one(folder: Path, question: str, names: list[str]) -> None:
    assert list(mentioned_files(question, folder, may_leave=True)) == names


def test_a_file_elsewhere_is_named_by_its_path_where_that_is_allowed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("USERPROFILE", str(folder.parent))
    question = f"@~/outside.txt @../outside.txt @{folder.parent}/outside.txt @src/../notes.txt @~nobody-here/x.txt"
    everywhere = mentioned_files(question, folder, may_leave=True)
    assert len(everywhere) == 4
    assert {path.resolve().name for path in everywhere.values()} == {"outside.txt", "notes.txt"}
    assert list(mentioned_files(question, folder, may_leave=False)) == ["src/../notes.txt"]


def test_a_missing_file_is_distinguished_from_a_word(folder: Path) -> None:
    question = "@notes.text, @src/nothing and @somebody see @notes.txt"
    assert missing_mentions(question, folder) == ["notes.text", "src/nothing"]
    assert mentions(question, folder)["somebody"] is None


def test_an_unfinished_name_becomes_files_and_folders(folder: Path) -> None:
    assert complete_path("", folder) == ["my notes.txt", "notes.txt", "src/"]
    assert complete_path("no", folder) == ["notes.txt"]
    assert complete_path("src/", folder) == ["src/main.py"]
    assert complete_path(".h", folder) == [".hidden"]
    assert complete_path("../o", folder) == ["../outside.txt"]
    assert complete_path("nothing/", folder) == []
