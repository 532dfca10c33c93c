from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from app.engine.media.chunks import MediaChunk, MediaLayout
from app.engine.media.media_store import MediaStore
from tests.app.engine.damaged_files import damaged_files

LAYOUT = MediaLayout(((1, 2), MediaChunk("ab", 2, 2, False, np.arange(6, dtype=np.int32).reshape(2, 3)), (3,)))
EMBEDDINGS = np.arange(8, dtype=np.float32).reshape(2, 4)


def saved(folder: Path, conversation: str = "chat") -> MediaStore:
    store = MediaStore(folder)
    store.save_layout("file", LAYOUT, conversation)
    store.save_embeddings("ab", EMBEDDINGS, conversation)
    return store


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_saved_is_read(tmp_path: Path, is_restarted: bool) -> None:
    store = saved(tmp_path)
    store = MediaStore(tmp_path) if is_restarted else store
    layout, embeddings = store.layout("file"), store.embeddings("ab")
    assert layout is not None
    begin, chunk, end = layout.parts
    assert (begin, end) == ((1, 2), (3,))
    assert isinstance(chunk, MediaChunk)
    assert (chunk.content_id, chunk.n_tokens, chunk.n_positions, chunk.is_causal) == ("ab", 2, 2, False)
    assert chunk.positions is not None
    assert chunk.positions.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert embeddings is not None
    assert np.array_equal(embeddings, EMBEDDINGS)


def test_another_key_is_a_miss(tmp_path: Path) -> None:
    store = saved(tmp_path)
    assert store.layout("another") is None
    assert store.embeddings("cd") is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_only_the_owner_reads_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "media" / "key"
    saved(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("place", [-1, 20], ids=["content", "header"])
def test_a_damaged_file_is_a_miss_and_removed(tmp_path: Path, place: int) -> None:
    store = saved(tmp_path)
    paths = list(tmp_path.iterdir())
    for path in paths:
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)
    assert store.layout("file") is None
    assert store.embeddings("ab") is None
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_file_with_any_damage_is_a_miss_and_never_raises_or_another_layout(tmp_path: Path) -> None:
    saved(tmp_path / "made")
    n_tried = 0
    for made in (tmp_path / "made").iterdir():
        whole = made.read_bytes()
        (folder := tmp_path / made.name).mkdir()
        for data in damaged_files(whole, 20, seed=49):
            (folder / made.name).write_bytes(data)
            store = MediaStore(folder)
            layout, embeddings = store.layout("file"), store.embeddings("ab")
            assert layout is None or repr(layout) == repr(LAYOUT), data  # -0 is 0
            assert embeddings is None, data
            n_tried += 1
    assert n_tried > 5000


@pytest.mark.parametrize("n_kept", range(0, 160, 7))
def test_a_file_cut_off_anywhere_is_a_miss(tmp_path: Path, n_kept: int) -> None:
    store = saved(tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[: min(n_kept, path.stat().st_size - 1)])
    assert store.layout("file") is None
    assert store.embeddings("ab") is None


def test_a_file_that_another_process_removed_is_a_miss(tmp_path: Path) -> None:
    store = saved(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    assert store.embeddings("ab") is None


def test_the_least_recently_used_files_are_removed_first(tmp_path: Path) -> None:
    store = MediaStore(tmp_path, 3 * 250)
    for name in ("a", "b", "c"):
        store.save_embeddings(name, np.zeros((2, 10), np.float32), "chat")
    size = next(tmp_path.iterdir()).stat().st_size
    assert 100 < size < 250
    store = MediaStore(tmp_path, 2 * size + 10)
    assert store.embeddings("a") is not None
    store.save_embeddings("d", np.zeros((2, 10), np.float32), "chat")
    assert [name for name in "abcd" if store.embeddings(name) is not None] == ["a", "d"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * size + 10


def test_what_is_larger_than_the_limit_is_not_saved(tmp_path: Path) -> None:
    store = MediaStore(tmp_path, 100)
    store.save_embeddings("a", np.zeros((20, 10), np.float32), "chat")
    assert not list(tmp_path.iterdir())


def test_a_store_that_may_save_nothing_removes_what_is_there(tmp_path: Path) -> None:
    saved(tmp_path)
    store = MediaStore(tmp_path, 0)
    assert store.embeddings("ab") is None
    assert not list(tmp_path.iterdir())


def test_forgetting_a_conversation_leaves_others(tmp_path: Path) -> None:
    store = saved(tmp_path, "first")
    store.save_embeddings("cd", EMBEDDINGS, "second")
    store.save_embeddings("ef", EMBEDDINGS, "")
    store.forget({"first"})
    assert store.layout("file") is None
    assert store.embeddings("ab") is None
    assert store.embeddings("cd") is not None
    assert sorted(path.name.partition("-")[2] for path in tmp_path.iterdir()) == ["none", "second"]


def test_the_partial_file_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    abandoned, own = tmp_path / ".name-chat.999999999.0.tmp", tmp_path / f".name-chat.{os.getpid()}.0.tmp"
    for path in (abandoned, own):
        path.write_bytes(b"begin")
    MediaStore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [own.name]
