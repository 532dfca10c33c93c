from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from app.library.download.partial_file import PartialFile, SequentialWriter, journal_of
from app.library.download.remote_file import Digest, Range, StreamingHash
from quantizer.system.errors import StorageError

MARK = "sha256 abc"


def test_a_file_resumes(tmp_path: Path) -> None:
    with PartialFile(tmp_path / "m", 10, MARK) as partial:
        writer = SequentialWriter(partial, 4)
        writer.write(b"456")
        writer.note()
        SequentialWriter(partial, 0).write(b"0")  # never noted, so it does not count
    with PartialFile(tmp_path / "m", 10, MARK) as partial:
        assert partial.done.missing(10) == [Range(0, 4), Range(7, 10)]
        assert (tmp_path / "m").read_bytes()[4:7] == b"456"


@pytest.mark.parametrize("mark", ["sha256 other", ""])
def test_another_content_begins_at_nothing(tmp_path: Path, mark: str) -> None:
    with PartialFile(tmp_path / "m", 10, MARK) as partial:
        partial.note(Range(0, 10))
    with PartialFile(tmp_path / "m", 12, mark) as partial:
        assert partial.done.n_bytes == 0
        assert (tmp_path / "m").stat().st_size == 12


def test_the_space_is_taken_before_anything_comes(tmp_path: Path) -> None:
    n_bytes = shutil.disk_usage(tmp_path).free
    with pytest.raises(StorageError, match="GB free"), PartialFile(tmp_path / "m", n_bytes, MARK):
        pass
    with PartialFile(tmp_path / "m", 1 << 20, MARK):
        assert (tmp_path / "m").stat().st_size == 1 << 20


def test_a_system_that_cannot_reserve_space_gets_the_length_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated: macOS and Windows have no posix_fallocate."""
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    with PartialFile(tmp_path / "m", 1 << 20, MARK) as partial:
        assert (tmp_path / "m").stat().st_size == 1 << 20
        SequentialWriter(partial, (1 << 20) - 3).write(b"end")
    assert (tmp_path / "m").read_bytes()[-3:] == b"end"


def test_a_restart_forgets_for_good(tmp_path: Path) -> None:
    with PartialFile(tmp_path / "m", 10, MARK) as partial:
        partial.note(Range(0, 10))
        partial.restart()
    with PartialFile(tmp_path / "m", 10, MARK) as partial:
        assert partial.done.n_bytes == 0


def test_what_is_written_is_noted_often(tmp_path: Path) -> None:
    with PartialFile(tmp_path / "m", 4 << 20, MARK) as partial:
        writer = SequentialWriter(partial, 0)
        for _ in range(40):
            writer.write(bytes(64 << 10))
            assert writer.at - partial.done.n_bytes < 256 << 10
        assert journal_of(partial.path).read_text().count("\n") < 40


@pytest.mark.parametrize(
    ("digest", "expected"),
    [
        (Digest(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (Digest("git"), "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f"),  # git hash-object
    ],
)
def test_a_streaming_hash_waits_for_the_rest(tmp_path: Path, digest: Digest, expected: str) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"a\0\0")
    with StreamingHash(path, 3, digest.hasher(3)) as follower:
        follower.advance(1)
        path.write_bytes(b"abc")
        follower.advance(3)
        assert follower.digest() == expected


def test_an_abandoned_streaming_hash_ends(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"abc")
    with StreamingHash(tmp_path / "m", 9, Digest().hasher(9)) as follower:
        follower.advance(3)


def test_a_file_that_went_away_is_an_error(tmp_path: Path) -> None:
    with StreamingHash(tmp_path / "gone", 3, Digest().hasher(3)) as follower, pytest.raises(FileNotFoundError):
        follower.digest()
