from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.library.local.index import Index
from app.library.local.model_files import ModelRef
from app.library.local.verification import VerificationResult, verify
from tests.app.external_folders import hugging_face_model, ollama_model
from tests.app.small_models import small_model, small_shards


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
