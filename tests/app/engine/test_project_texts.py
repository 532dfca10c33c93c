from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine import project_texts
from app.engine.project_texts import (
    MAX_TEXT_BYTES,
    corpora_bytes,
    corpus_name,
    keep_texts,
    read_texts,
    text_digests,
)
from quantizer.system.process import child_environment
from tests.patience import PATIENCE_S

NAME = corpus_name("me", "project")
WRITER = """
import sys
from pathlib import Path
from app.engine.project_texts import keep_texts
for number in range(30):
    keep_texts(Path(sys.argv[1]), "corpus", sys.argv[2], [f"{sys.argv[2]} {number} " * 200, f"both {number} " * 200])
"""


def texts_of(folder: Path, name: str = NAME) -> list[str]:
    return [*read_texts(folder, name).texts.values()]


def aged(folder: Path, *names: str) -> None:
    """Let the texts have been kept one after the other, these first."""
    for number, name in enumerate(names):
        for path in folder.glob(f"*/*-{name}"):
            os.utime(path, (number, number))


def test_texts_are_kept_in_order_each_once_and_for_their_owner_alone(tmp_path: Path) -> None:
    assert keep_texts(tmp_path, NAME, "chat", ["one", "two", "one"]) == 3
    assert sorted(texts_of(tmp_path)) == ["one", "two"]
    for other in (corpus_name("she", "project"), corpus_name("me", "other"), corpus_name("mep", "roject")):
        assert texts_of(tmp_path, other) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_only_the_owner_of_the_cache_can_read_them(tmp_path: Path) -> None:
    keep_texts(tmp_path / "corpus", NAME, "chat", ["one"])
    modes = [stat.S_IMODE(path.stat().st_mode) for path in sorted(tmp_path.rglob("*"))]
    assert modes == [0o700, 0o700, 0o600]


def test_a_text_of_two_chats_is_there_until_both_are_removed(tmp_path: Path) -> None:
    for chat in ("first", "second"):
        keep_texts(tmp_path, NAME, chat, ["one"])
    assert texts_of(tmp_path) == ["one"]
    next(tmp_path.glob("*/*-first")).unlink()
    assert texts_of(tmp_path) == ["one"]


def test_the_texts_that_were_kept_longest_ago_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_texts, "MAX_CORPUS_BYTES", 300)
    for letter in "abc":
        keep_texts(tmp_path, NAME, letter, [letter * 100])
    aged(tmp_path, "b", "a", "c")
    keep_texts(tmp_path, NAME, "d", ["d" * 100])
    assert [text[0] for text in texts_of(tmp_path)] == ["c", "d"]


def test_all_projects_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_texts, "MAX_ALL_BYTES", 400)
    for number in range(9):
        keep_texts(tmp_path, corpus_name("me", str(number)), str(number), ["x" * 100])
        aged(tmp_path, *"012345678")
        assert corpora_bytes(tmp_path) <= 400
    assert texts_of(tmp_path, corpus_name("me", "8"))
    assert not texts_of(tmp_path, corpus_name("me", "0"))


@settings(max_examples=20)
@given(texts=st.lists(st.text(max_size=300), max_size=12), most=st.integers(0, 900))
def test_no_corpus_is_larger_than_its_bound_and_what_is_there_is_whole(
    texts: list[str], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("corpora")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(project_texts, "MAX_CORPUS_BYTES", most)
        keep_texts(folder, NAME, "chat", texts)
    assert corpora_bytes(folder) <= most
    assert {*texts_of(folder)} <= {text.encode("utf-8", "replace").decode() for text in texts}


def test_of_a_long_text_the_beginning_is_kept_in_whole_characters(tmp_path: Path) -> None:
    keep_texts(tmp_path, NAME, "chat", ["é" * MAX_TEXT_BYTES, "x" + "é" * MAX_TEXT_BYTES])
    assert sorted(len(text.encode()) for text in texts_of(tmp_path)) == [MAX_TEXT_BYTES - 1, MAX_TEXT_BYTES]


def test_two_hundred_damaged_files_are_dropped_and_the_others_stay(tmp_path: Path) -> None:
    keep_texts(tmp_path, NAME, "chat", ["a text of a file that was read", "another one"])
    path, *_ = (path for path in sorted(tmp_path.glob("*/*")) if b"read" in path.read_bytes())
    whole, chance = path.read_bytes(), random.Random(1)
    damaged = [
        *(whole[:cut] for cut in range(len(whole))),
        *(whole[:at] + bytes([byte ^ 1 << chance.randrange(8)]) + whole[at + 1 :] for at, byte in enumerate(whole)),
        *(chance.randbytes(chance.randrange(80)) for _ in range(110)),
        whole * 2,
        whole + bytes(2 * MAX_TEXT_BYTES),
        whole.replace(b"-1\n", b"-2\n"),
    ]
    assert len(damaged) >= 200
    for data in damaged:
        path.write_bytes(data)
        found = read_texts(tmp_path, NAME)
        assert ([*found.texts.values()], found.n_damaged) == (["another one"], 1)
        assert not path.exists()


def test_what_is_no_file_or_has_another_name_is_left_out(tmp_path: Path) -> None:
    keep_texts(tmp_path, NAME, "chat", ["one"])
    folder = tmp_path / NAME
    (folder / "a-folder").mkdir()
    next(folder.glob("*-chat")).rename(folder / ("0" * 32 + "-chat"))
    found = read_texts(tmp_path, NAME)
    assert (found.texts, found.n_damaged) == ({}, 2)


def test_a_cache_that_cannot_be_written_keeps_nothing_and_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert keep_texts(tmp_path / "file", NAME, "chat", ["one"]) == 0
    assert texts_of(tmp_path / "file") == []
    assert text_digests(tmp_path / "file", NAME) == frozenset()


@pytest.mark.slow
def test_two_processes_that_write_one_corpus_lose_nothing(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), chat], env=child_environment())
        for chat in ("one", "other")
    ]
    assert [writer.wait(PATIENCE_S) for writer in writers] == [0, 0]
    found = read_texts(tmp_path, "corpus")
    assert (len(found.texts), found.n_damaged) == (90, 0)
