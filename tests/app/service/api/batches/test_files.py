from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from app.service.api.batches import files
from app.service.api.batches.files import FileStore
from app.service.http.errors import RefusedError
from tests.app.killed_writer import partial_files


class Clock:
    now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> FileStore:
    return FileStore(tmp_path / "files", clock)


def add(store: FileStore, content: bytes = b"content", expires_s: int = 3600) -> str:
    return store.add(io.BytesIO(content), "in.jsonl", expires_s)["id"]


def test_a_file_is_gone_once_it_has_expired(store: FileStore, clock: Clock, tmp_path: Path) -> None:
    first, second = add(store), add(store, expires_s=7200)
    clock.now_s += 3600
    with pytest.raises(RefusedError):
        store.find(first)
    assert [stored["id"] for stored in store.all()] == [second]
    assert {path.stem for path in (tmp_path / "files").iterdir()} == {second}


def test_what_an_upload_left_that_was_killed_is_removed_later(store: FileStore, clock: Clock, tmp_path: Path) -> None:
    add(store)
    left = tmp_path / "files" / f"file-{'0' * 32}.data"
    left.write_bytes(b"half")
    os.utime(left, (clock.now_s, clock.now_s))
    store.all()
    assert left.exists()  # its description may be about to come
    clock.now_s += 3601
    store.all()
    assert not left.exists()


def test_files_are_bounded_in_number_and_size(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 2)
    monkeypatch.setattr(files, "MAX_TOTAL_BYTES", 100)
    add(store, b"x" * 60)
    with pytest.raises(RefusedError, match="Delete some") as raised:
        add(store, b"x" * 41)
    assert raised.value.status == 413
    last = add(store, b"x" * 40)
    with pytest.raises(RefusedError):
        add(store, b"")
    store.remove(last)
    add(store, b"")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"id": "file-1"}'])
def test_a_description_that_is_damaged_is_no_file(store: FileStore, tmp_path: Path, content: bytes) -> None:
    file_id = add(store)
    (tmp_path / "files" / f"{file_id}.json").write_bytes(content)
    assert store.all() == []
    with pytest.raises(RefusedError):
        store.path_of(file_id)


def test_a_file_of_one_id_is_replaced_whole(store: FileStore) -> None:
    file_id = f"file-{'a' * 32}"
    for pieces in ([b"one ", b"and two"], [b"three"]):
        stored = store.write(file_id, "out.jsonl", "batch_output", 3600, pieces)
        assert stored["bytes"] == len(b"".join(pieces))
        assert store.path_of(file_id).read_bytes() == b"".join(pieces)
    assert len(store.all()) == 1


def test_a_file_that_a_killed_service_was_writing_leaves_nothing(tmp_path: Path) -> None:
    """An upload may have been large."""
    folder = tmp_path / "files"
    running = partial_files(folder, "file-1.data")
    FileStore(folder).all()
    assert list(folder.iterdir()) == [running]
