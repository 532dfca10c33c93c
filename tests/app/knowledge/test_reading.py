from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.knowledge import reading
from app.knowledge.reading import ReadProgress, read_folder
from app.knowledge.store import FILE_NAME, Folder, KnowledgeStore
from quantizer.system.errors import EngineError, StorageError
from tests.app.chat.attachments.files import pdf_of, picture_of

_OLD_S = 1_000_000_000  # a time of change long before now: nothing is looked at twice for it


@pytest.fixture
def top(tmp_path: Path) -> Path:
    folder = tmp_path / "top"
    folder.mkdir()
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KnowledgeStore]:
    with KnowledgeStore(tmp_path / "data") as opened:
        yield opened


def _write(path: Path, content: str | bytes, changed_s: int = _OLD_S) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(path, (changed_s, changed_s))


def _read(store: KnowledgeStore, top: Path) -> ReadProgress:
    *_, last = read_folder(store, store.add_folder(top))
    return last


def _texts(store: KnowledgeStore) -> list[str]:
    with sqlite3.connect(store._path) as connection:
        rows = connection.execute("SELECT text FROM passages ORDER BY text").fetchall()
    connection.close()
    return [row[0] for row in rows]


def _left_out(store: KnowledgeStore) -> dict[str, str]:
    (folder,) = store.folders()
    return dict(store.left_out(folder))


def test_files_are_read_once_and_again_when_they_change(store: KnowledgeStore, top: Path) -> None:
    _write(top / "a.txt", "soup")
    _write(top / "b" / "c.md", "bread")
    assert _read(store, top) == ReadProgress(n_seen=2, n_read=2, n_passages=2)
    assert _read(store, top) == ReadProgress(n_seen=2, n_unchanged=2)
    _write(top / "a.txt", "stew", _OLD_S + 1)
    assert _read(store, top) == ReadProgress(n_seen=2, n_read=1, n_unchanged=1, n_passages=1)
    assert _texts(store) == ["bread", "stew"]


def test_a_file_that_was_only_touched_keeps_its_passages(store: KnowledgeStore, top: Path) -> None:
    _write(top / "a.txt", "soup")
    _read(store, top)
    os.utime(top / "a.txt", (_OLD_S + 9, _OLD_S + 9))
    assert _read(store, top) == ReadProgress(n_seen=1, n_unchanged=1)


def test_a_change_within_one_tick_of_the_clock_is_seen(store: KnowledgeStore, top: Path) -> None:
    (top / "a.txt").write_text("soup")
    status = (top / "a.txt").stat()
    _read(store, top)
    (top / "a.txt").write_text("stew")
    os.utime(top / "a.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert _read(store, top).n_read == 1
    assert _texts(store) == ["stew"]


def test_what_is_gone_is_forgotten(store: KnowledgeStore, top: Path) -> None:
    _write(top / "a.txt", "soup")
    _write(top / "b.txt", "bread")
    _read(store, top)
    (top / "a.txt").unlink()
    assert _read(store, top) == ReadProgress(n_seen=1, n_unchanged=1, n_gone=1)
    assert _texts(store) == ["bread"]


def test_a_folder_that_is_not_there_keeps_what_was_read(store: KnowledgeStore, top: Path) -> None:
    _write(top / "a.txt", "soup")
    _read(store, top)
    top.rename(top.with_name("away"))
    with pytest.raises(StorageError, match="cannot be read"):
        _read(store, top)
    assert _texts(store) == ["soup"]


def test_a_folder_that_cannot_be_read_now_keeps_what_was_read_in_it(
    store: KnowledgeStore, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(top / "b" / "c.txt", "bread")
    _read(store, top)
    unreadable = reading.FoundFile(b"b", reason="a folder that cannot be read", is_folder=True, is_unreadable=True)
    monkeypatch.setattr(reading, "scan", lambda _top, _excluded: iter([unreadable]))
    assert _read(store, top).n_gone == 0
    assert _texts(store) == ["bread"]


def test_a_file_that_cannot_be_read_now_keeps_what_was_read_of_it_and_is_read_again(
    store: KnowledgeStore, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(top / "a.txt", "soup")
    _read(store, top)
    _write(top / "a.txt", "bread")

    def fail(*_: object, **__: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(reading, "read_contents", fail)
        assert _read(store, top).n_left_out == 1
    assert _texts(store) == ["soup"]
    assert _left_out(store) == {"a.txt": "it cannot be read: Input/output error"}
    assert _read(store, top).n_read == 1
    assert _texts(store) == ["bread"]
    assert _left_out(store) == {}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.bin", b"\x7fELF\0\0", "it is a program"),
        ("a.txt", b"caf\xe9", "it is not UTF-8 text"),
        ("a.png", picture_of(), "it is a PNG picture, which has no text"),
        ("a.txt", b" \n\n", "it has no text"),
        ("a.txt", b"x" * ((4 << 20) + 1), "it is a text of more than 4 MiB"),
        ("deploy.txt", f"-----BEGIN OPENSSH PRIVATE KEY-----\n{'b3Bl' * 12}\n".encode(), "it contains a private key"),
    ],
)
def test_what_is_left_out_is_named_with_the_reason(
    store: KnowledgeStore, top: Path, name: str, content: bytes, reason: str
) -> None:
    _write(top / name, content)
    assert _read(store, top) == ReadProgress(n_seen=1, n_left_out=1)
    assert _left_out(store)[name].startswith(reason)
    assert _read(store, top) == ReadProgress(n_seen=1, n_left_out=1)
    assert _texts(store) == []


def test_a_text_that_shows_how_a_key_begins_is_read(store: KnowledgeStore, top: Path) -> None:
    _write(top / "ssl.txt", "-----BEGIN RSA PRIVATE KEY-----\n... (private key in base64 encoding) ...")
    assert _read(store, top).n_read == 1


@pytest.mark.slow
def test_pages_of_a_pdf_are_known_and_one_without_text_is_left_out(store: KnowledgeStore, top: Path) -> None:
    _write(top / "a.pdf", pdf_of(["Soup is hot", "Bread is old"]))
    _write(top / "scan.pdf", pdf_of([""]))
    assert _read(store, top).n_read == 1
    found = store.passages(store.with_words('"bread"', (1, 1, 1), 5))
    assert [(each.path.name, each.passage.page) for each in found.values()] == [("a.pdf", 2)]
    assert _left_out(store) == {"scan.pdf": "it has no text"}


def test_a_file_that_changes_while_it_is_read_is_read_again(
    store: KnowledgeStore, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = top / "a.txt"
    _write(path, "soup")
    read_contents = reading.read_contents
    versions = ["stew", "broth and more"]

    def read_and_change(*arguments: object, **options: object) -> bytes:
        data = read_contents(*arguments, **options)  # type: ignore[arg-type]
        if versions:
            _write(path, versions.pop(), _OLD_S + len(versions) + 1)
        return data

    monkeypatch.setattr(reading, "read_contents", read_and_change)
    assert _read(store, top).n_read == 1
    assert _texts(store) == ["stew"]


def test_a_file_that_never_rests_is_left_out_and_tried_again(
    store: KnowledgeStore, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = top / "log.txt"
    _write(path, "0")

    def read_and_change(*_arguments: object, **_options: object) -> bytes:
        _write(path, path.read_text() + "1")
        return b"1"

    with monkeypatch.context() as patch:
        patch.setattr(reading, "read_contents", read_and_change)
        _read(store, top)
    assert _left_out(store) == {"log.txt": "it was changing while it was read"}
    assert _read(store, top).n_read == 1


def test_a_file_that_is_removed_while_it_is_read_is_no_file(
    store: KnowledgeStore, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(top / "a.txt", "soup")
    found = list(reading.scan(top))
    (top / "a.txt").unlink()
    monkeypatch.setattr(reading, "scan", lambda _top, _excluded: iter(found))
    assert _read(store, top) == ReadProgress(n_seen=1)


def test_a_reading_that_ends_early_keeps_what_was_read(store: KnowledgeStore, top: Path) -> None:
    for number in range(40):
        _write(top / f"{number:02}.txt", f"text {number}")
    steps = read_folder(store, store.add_folder(top))
    progress = next(step for step in steps if step.n_read == 20)
    steps.close()
    assert len(_texts(store)) == progress.n_read
    (folder,) = store.folders()
    assert folder.updated_ms == 0
    assert _read(store, top).n_unchanged == 20


def test_an_error_of_a_reader_keeps_what_was_read_before(
    store: KnowledgeStore, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        _write(top / f"{number:02}.txt", f"text {number}")
    read_data = reading.read_data

    def without_processes(data: bytes, name: str, **options: object) -> object:
        if name == "15.txt":
            raise EngineError("The file reader cannot be started.", "Free memory.")
        return read_data(data, name, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(reading, "read_data", without_processes)
        with pytest.raises(EngineError):
            _read(store, top)
    assert len(_texts(store)) == 15
    assert _read(store, top).n_read == 5


def test_what_an_older_reader_read_is_read_again(
    store: KnowledgeStore, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(top / "a.txt", "soup")
    _read(store, top)
    monkeypatch.setattr(reading, "READER_VERSION", 2)
    assert _read(store, top).n_read == 1


def test_words_after_a_name_that_is_no_utf_8_are_found(store: KnowledgeStore, top: Path) -> None:
    if os.name == "nt" or os.uname().sysname == "Darwin":
        pytest.skip("names of bytes")
    name = os.fsdecode(b"caf\xe9.txt")
    _write(top / name, "soup")
    _read(store, top)
    (found,) = store.passages(store.with_words('"soup"', (1, 1, 1), 5)).values()
    assert found.path == top / name


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_only_the_owner_reads_what_is_stored(store: KnowledgeStore, top: Path, tmp_path: Path) -> None:
    _write(top / "a.txt", "soup")
    _read(store, top)
    assert (tmp_path / "data" / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_the_records_of_many_files_are_bounded(store: KnowledgeStore, top: Path) -> None:
    """Readers have a few files in hand, and what waits to be stored is stored after so many."""
    folder: Folder = store.add_folder(top)
    for number in range(300):
        _write(top / f"{number:03}.txt", "x")
    steps = read_folder(store, folder)
    progress = next(step for step in steps if step.n_seen == 300)
    assert progress.n_read >= 300 - 2 * 4
    steps.close()
