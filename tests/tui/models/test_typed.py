"""Paths in the search field of the models screen."""

from __future__ import annotations

import os

import pytest

from app.connection import find_model, model_lines
from app.protocol.library import LocalModel
from quantizer.system.errors import UsageError
from tests.app.small_models import small_model, small_shards
from tests.tui.model_scenes import GUIDE
from tui.models.typed import completed, path_section, typed_path


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


MODELS = (
    GUIDE,
    *(
        LocalModel(id=name, where="library", path=f"/m/{name}.gguf", n_bytes=1)
        for name in ("qwen3-4b-Q4_K_M", "qwen3-4b-Q8_0", "qwen3-4b-Q8_0-long")
    ),
)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("guide", "guide"),
        ("QWEN3-4B-q8_0", "qwen3-4b-Q8_0"),
        ("/m/qwen3-4b-Q8_0.gguf", "qwen3-4b-Q8_0"),
        ("qwen q4", "qwen3-4b-Q4_K_M"),
    ],
)
def test_a_whole_name_or_words_that_only_one_name_has_find_a_model(typed, found):
    assert find_model(typed, MODELS).id == found


@pytest.mark.parametrize("typed", ["Qwen3-4B-Q8_0", "qwen3:4b-q8_0", "3-4B-Q8", "3:4b q8"])
def test_a_model_is_found_by_the_name_of_its_file_too(typed):
    models = [
        LocalModel(id=name, where="library", path=f"/m/{file}.gguf", n_bytes=1)
        for name, file in (("qwen3:4b-q8_0", "Qwen3-4B-Q8_0"), ("qwen3:4b-long-q4_0", "Qwen3-4B-long-Q4_0"))
    ]
    assert find_model(typed, models).id == "qwen3:4b-q8_0"


def test_the_hash_that_a_file_of_ollama_is_called_by_finds_nothing():
    blob = LocalModel(id="llama3.2:3b", where="Ollama", path="/o/blobs/sha256-4bq8", n_bytes=1)
    with pytest.raises(UsageError):
        find_model("4b q8", [blob])


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ("qwen", "qwen may be qwen3-4b-Q4_K_M, qwen3-4b-Q8_0, qwen3-4b-Q8_0-long."),
        ("giude", "There is no local model giude. Did you mean guide?"),
        ("###", "There is no local model ###. /model lists the local models."),
    ],
)
def test_a_name_that_finds_none_or_several_says_which_are_similar(typed, complaint):
    with pytest.raises(UsageError) as refused:
        find_model(typed, MODELS)
    assert str(refused.value).startswith(complaint)


def test_the_current_model_is_marked_in_the_list():
    assert model_lines(MODELS[:2], "guide") == ["* guide", "  qwen3-4b-Q4_K_M"]
    assert "localllm pull" in model_lines((), "guide")[0]
