from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.library.local.index import (
    Index,
    IndexRecord,
    VerificationResult,
    index_key,
    list_entries,
    read_facts,
    sha256_of,
    verify,
)
from app.library.local.model_files import ModelRef
from app.protocol.library import ModelFacts
from quantizer.system.errors import StorageError
from tests.app.external_folders import hugging_face_model, ollama_model
from tests.app.small_models import small_model, small_shards
from tests.patience import PATIENCE_S

ADDS_ROWS = """
import sys
from pathlib import Path
from app.library.local.index import Index, IndexRecord
for number in range(40):
    with Index(Path(sys.argv[1])) as index:
        index.store(Path(sys.argv[2], f"{number}.gguf"), IndexRecord("1", None, "fault"))
"""


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    return read_facts(small_model(tmp_path / "m.gguf", "nämé \x1b[0m"))


def test_what_is_kept_is_known_to_the_next_process(tmp_path: Path, facts: ModelFacts) -> None:
    path = tmp_path / "m.gguf"
    with Index(tmp_path / "cache") as index:
        index.store(path, IndexRecord("stamp", facts))
    with Index(tmp_path / "cache") as index:
        assert index.records() == {index_key(path): IndexRecord("stamp", facts)}


def test_a_forgotten_file_has_neither_facts_nor_a_hash(tmp_path: Path, facts: ModelFacts) -> None:
    path = tmp_path / "m.gguf"
    with Index(tmp_path / "cache") as index:
        index.store(path, IndexRecord("stamp", facts))
        index.record_sha256(path, "ab" * 32)
        index.forget([path])
        assert (index.records(), index.paths(), index.sha256(path)) == ({}, set(), "")


def test_a_hash_stays_with_its_file_when_bytes_change_in_place(tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.gguf")
    with Index(tmp_path / "cache") as index:
        index.record_sha256(path, "ab" * 32)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        with path.open("r+b") as file:
            file.write(data)
        assert index.sha256(path) == "ab" * 32


def test_a_hash_does_not_pass_to_a_file_that_takes_the_place_of_another(tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.gguf")
    with Index(tmp_path / "cache") as index:
        index.record_sha256(path, "ab" * 32)
        small_model(tmp_path / "other.gguf").replace(path)
        assert index.sha256(path) == ""


@pytest.mark.parametrize("damage", [b"", b"no database at all, but long enough for a header" * 50])
def test_a_damaged_index_is_recreated(tmp_path: Path, damage: bytes, facts: ModelFacts) -> None:
    (tmp_path / "index.db").write_bytes(damage)
    with Index(tmp_path) as index:
        assert index.was_damaged == bool(damage)
        index.store(tmp_path / "m.gguf", IndexRecord("stamp", facts))
        assert len(index.records()) == 1


def test_damage_found_late_is_repaired_too(tmp_path: Path, facts: ModelFacts) -> None:
    with Index(tmp_path) as index:
        for number in range(200):
            index.store(tmp_path / f"{number}.gguf", IndexRecord("stamp", facts))
    path = tmp_path / "index.db"
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    with Index(tmp_path) as index:
        index.records()
        assert index.was_damaged
        index.store(tmp_path / "m.gguf", IndexRecord("stamp", facts))
        assert len(index.records()) == 1


def test_facts_of_another_version_are_forgotten_and_hashes_stay(tmp_path: Path, facts: ModelFacts) -> None:
    path = tmp_path / "m.gguf"
    with Index(tmp_path / "cache") as index:
        index.store(path, IndexRecord("stamp", facts))
        index.record_sha256(path, "ab" * 32)
    connection = sqlite3.connect(tmp_path / "cache" / "index.db")
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with Index(tmp_path / "cache") as index:
        assert (index.records(), index.sha256(path)) == ({}, "ab" * 32)


@given(st.text())
def test_invalid_facts_count_as_unknown(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("index")
    with Index(folder) as index:
        index.store(folder / "m.gguf", IndexRecord("stamp", None))
        index._run("UPDATE models SET facts = ?", [(text.encode(errors="replace").decode(),)])
        assert index.records() == {index_key(folder / "m.gguf"): IndexRecord("stamp", None)}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_of_any_bytes_is_kept(tmp_path: Path) -> None:
    path = small_model(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.gguf")))
    with Index(tmp_path) as index:
        index.store(path, IndexRecord("stamp", None, "fault"))
        index.record_sha256(path, "ab" * 32)
        assert index.records()[index_key(path)].fault == "fault"
        assert index.sha256(path) == "ab" * 32


@pytest.mark.slow
def test_four_processes_write_at_once_and_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", ADDS_ROWS, str(tmp_path / "cache")]
    writers = [subprocess.Popen([*command, str(tmp_path / str(number))]) for number in range(4)]
    assert [writer.wait(timeout=PATIENCE_S) for writer in writers] == [0] * 4
    with Index(tmp_path / "cache") as index:
        assert len(index.records()) == 160
        assert not index.was_damaged


def test_an_index_that_cannot_be_stored_is_in_memory_and_says_why(tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.gguf")
    (tmp_path / "cache").write_text("a file")
    with Index(tmp_path / "cache") as index:
        assert index.problem == "File exists"
        index.record_sha256(path, "ab" * 32)
        assert index.sha256(path) == "ab" * 32
        assert verify(ModelRef("m", path), index, lambda _: None).state == "damaged"
    with Index(tmp_path / "cache") as index:
        assert index.sha256(path) == ""


@pytest.mark.parametrize(
    "error", ["database or disk is full", "attempt to write a readonly database", "disk I/O error", "locking protocol"]
)
def test_what_the_index_had_is_kept_while_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    known, new = small_model(tmp_path / "known.gguf"), small_model(tmp_path / "new.gguf")
    with Index(tmp_path) as index:
        index.record_sha256(known, "ab" * 32)

    def refuse(_path: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError(error)

    monkeypatch.setattr("app.library.local.index._connect", refuse)
    with Index(tmp_path) as index:
        assert index.problem == error
        assert index.sha256(known) == "ab" * 32
        assert verify(ModelRef("new", new), index, lambda _: None).state == "unrecorded"
        with pytest.raises(StorageError, match=error):
            verify(ModelRef("new", new), index, lambda _: None, is_recording=True)


def test_an_index_that_fills_the_disk_goes_on_in_memory(tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.gguf")
    with Index(tmp_path) as index:
        index.record_sha256(path, "ab" * 32)
        n_pages = index._connection.execute("PRAGMA page_count").fetchone()[0]
        index._connection.execute(f"PRAGMA max_page_count = {n_pages}")
        for number in range(200):
            index.store(tmp_path / f"{number}.gguf", IndexRecord("stamp", None, "fault" * 50))
        assert "full" in index.problem
        assert len(index.records()) == 200
        assert index.sha256(path) == "ab" * 32


def test_an_origin_belongs_to_one_file_only(tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.gguf")
    with Index(tmp_path / "cache") as index:
        index.record_origin(path, 'sha256 "etag" 7')
        assert index.origin(path) == 'sha256 "etag" 7'
        assert index_key(path) in index.paths()
        path.rename(tmp_path / "another.gguf")
        small_model(path)
        assert index.origin(path) == ""
        index.forget([path])
        assert index.paths() == set()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "cache") as opened:
        yield opened


def _verdict(path: Path, index: Index, *, is_recording: bool = False) -> VerificationResult:
    return verify(ModelRef(path.stem, path), index, lambda _: None, is_recording=is_recording)


def _flip(path: Path) -> None:
    """Change one byte in place, within the model's name."""
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data[:-1] + bytes([data[-1] ^ 1]))


def test_the_first_reading_records_and_the_next_one_compares(tmp_path: Path, index: Index) -> None:
    path = small_model(tmp_path / "m.gguf")
    assert [_verdict(path, index).state for _ in range(2)] == ["recorded", "sound"]


def test_a_flipped_byte_is_found_in_any_part(tmp_path: Path, index: Index) -> None:
    paths = small_shards(tmp_path / "big.gguf", 2)
    path = small_model(tmp_path / "m.gguf")
    _verdict(paths[0], index)
    _verdict(path, index)
    _flip(path)
    assert "should have" in _verdict(path, index).reason
    assert _verdict(paths[0], index).state == "sound"
    data = bytearray(paths[1].read_bytes())
    data[-11] ^= 1
    with paths[1].open("r+b") as file:
        file.write(data)
    assert _verdict(paths[0], index).state == "damaged"


def test_what_was_damaged_stays_so_until_it_is_taken_for_right(tmp_path: Path, index: Index) -> None:
    path = small_model(tmp_path / "m.gguf")
    _verdict(path, index)
    _flip(path)
    assert [_verdict(path, index).state for _ in range(2)] == ["damaged", "damaged"]
    assert _verdict(path, index, is_recording=True).state == "recorded"
    assert _verdict(path, index).state == "sound"


def _mended(path: Path, index: Index) -> None:
    _flip(path)
    assert _verdict(path, index).state == "sound"


def _taken_as_it_is(path: Path, index: Index) -> None:
    _verdict(path, index, is_recording=True)


def _pulled_again(path: Path, index: Index) -> None:
    path.rename(path.with_suffix(".old"))  # so that no new file gets its inode
    small_model(path)
    index.record_sha256(path, sha256_of(path, lambda _: None))


def _replaced(path: Path, index: Index) -> None:
    path.rename(path.with_suffix(".old"))
    small_model(path)


def _removed(path: Path, index: Index) -> None:
    path.unlink()
    index.forget([path])


@pytest.mark.parametrize("clear", [_mended, _taken_as_it_is, _pulled_again, _replaced, _removed])
def test_a_mismatch_is_recorded_until_the_file_is_right(
    tmp_path: Path, index: Index, clear: Callable[[Path, Index], None]
) -> None:
    path, other = small_model(tmp_path / "m.gguf"), small_model(tmp_path / "other.gguf")
    _verdict(path, index)
    assert index.mismatch(path) == ""
    _flip(path)
    found = _verdict(path, index)
    assert found.reason == index.mismatch(path) != ""
    entries = list_entries([ModelRef("m", path), ModelRef("other", other)], index)
    assert [entry.describe().mismatch for entry in entries] == [found.reason, ""]
    with Index(tmp_path / "cache") as reopened:
        assert reopened.mismatch(path) == found.reason
    clear(path, index)
    assert index.mismatch(path) == ""


def test_a_mismatch_of_any_part_is_the_models(tmp_path: Path, index: Index) -> None:
    paths = small_shards(tmp_path / "big.gguf", 2)
    _verdict(paths[0], index)
    _flip(paths[1])
    assert index.mismatch(paths[0]) == ""
    assert _verdict(paths[0], index).reason == index.mismatch(paths[0]) != ""


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: ollama_model(folder, "registry.ollama.ai/library/m/latest"),
        lambda folder: hugging_face_model(folder, "org/name", "m.gguf"),
    ],
)
def test_a_blob_is_held_against_its_own_name(tmp_path: Path, index: Index, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    assert _verdict(path, index).state == "sound"
    _flip(path.resolve())
    with Index(tmp_path / "another") as fresh:
        assert _verdict(path, fresh).state == "damaged"


def test_a_truncated_model_is_damaged_without_any_record(tmp_path: Path, index: Index) -> None:
    path = small_model(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-1])
    verdict = _verdict(path, index)
    assert (verdict.state, verdict.sha256) == ("damaged", ())
    assert "truncated" in verdict.reason


def test_every_byte_is_counted(tmp_path: Path, index: Index) -> None:
    path = small_model(tmp_path / "m.gguf")
    counted: list[int] = []
    verify(ModelRef("m", path), index, counted.append)
    assert sum(counted) == path.stat().st_size
