"""Paths in the search field of the models screen."""

from __future__ import annotations

import os

import pytest

from tests.app.small_models import small_model, small_shards
from tui.models.typed_path import completed, path_section, typed_path


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/a/b.gguf", "/a/b.gguf"),
        (" '/a/b c.gguf' ", "/a/b c.gguf"),
        ('"~/b.gguf"', "~/b.gguf"),
        ("./b.gguf", "./b.gguf"),
        ("file:///a/b%20c.gguf", "/a/b c.gguf"),
        ("C:\\models\\b.gguf", "C:\\models\\b.gguf"),
        ("qwen2.5 coder", ""),
        ("org/repo", ""),
        ("org/repo:Q4_K_M", ""),
        ("'quoted'", ""),
        ("'", ""),
        ("", ""),
    ],
)
def test_a_path_is_told_from_words(text, wanted):
    assert typed_path(text) == wanted


@pytest.mark.skipif(os.name == "nt", reason="a separator there")
def test_escaped_spaces_of_a_dropped_file_are_spaces():
    assert typed_path("/a/b\\ c.gguf") == "/a/b c.gguf"


def test_a_folder_offers_models_first_and_then_folders_without_hidden_ones(tmp_path):
    small_model(tmp_path / "z.gguf")
    small_shards(tmp_path / "big.gguf", 2)
    (tmp_path / "notes.txt").write_text("")
    for folder in ("sub", ".hidden"):
        (tmp_path / folder).mkdir()
    os.mkfifo(tmp_path / "pipe.gguf") if hasattr(os, "mkfifo") else None
    section = path_section(f"{tmp_path}/")
    assert [row.name for row in section.rows] == ["big-00001-of-00002.gguf", "z.gguf", f"sub{os.sep}"]
    assert [row.kind for row in section.rows] == ["file", "file", "folder"]


def test_what_cannot_be_imported_says_so(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    assert "not a GGUF" in path_section(str(tmp_path / "notes.txt")).note
    assert path_section(str(tmp_path / "none" / "m.gguf")).note == f"There is no folder {tmp_path / 'none'}."
    assert path_section(str(tmp_path / "zzz")).note == "There is no folder or GGUF file that begins with zzz."
    assert path_section("/\0").rows == path_section("/" + "x" * 5000).rows == ()


def test_a_path_is_completed_as_far_as_all_agree(tmp_path):
    for name in ("model-a.gguf", "model-b.gguf", "deep/only.gguf"):
        small_model(tmp_path / name)
    begin = f"{tmp_path}{os.sep}"
    assert completed(f"{begin}m") == f"{begin}model-"
    assert completed(f"{begin}model-") == f"{begin}model-"
    assert completed(f"{begin}d") == f"{begin}deep{os.sep}"
    assert completed(f"{begin}deep{os.sep}") == f"{begin}deep{os.sep}only.gguf"
    assert completed(f"{begin}nothing") == f"{begin}nothing"


@pytest.mark.skipif(os.name == "nt", reason="such names are impossible there")
def test_a_name_that_a_terminal_must_not_see_is_neither_listed_nor_completed(tmp_path):
    (tmp_path / "a\x1b[2Jb.gguf").write_bytes(b"GGUF")
    (tmp_path / os.fsdecode(b"a\xff.gguf")).write_bytes(b"GGUF")
    assert path_section(f"{tmp_path}/").rows == ()
    assert completed(f"{tmp_path}/a") == f"{tmp_path}/a"
