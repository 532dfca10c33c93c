from __future__ import annotations

from pathlib import Path

import pytest

from quantizer.gguf.header import read_header
from tests.battery.damage.fuzz_model import mutants
from tests.battery.damage.gguf_readers import GgufReaders, disagreement
from tests.quantizer.gguf_files import tiny_llama


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


def test_a_sound_file_is_a_model_to_every_reader(tmp_path: Path, original: Path) -> None:
    with GgufReaders(tmp_path) as readers:
        assert not any(readers.verdicts(original).values())


@pytest.mark.slow
def test_a_damaged_file_is_a_model_to_all_readers_or_to_none(tmp_path: Path, original: Path) -> None:
    path, data = tmp_path / "mutant.gguf", original.read_bytes()
    made = mutants(data, 20, 200, read_header(original).data_offset, seed=21)
    with GgufReaders(tmp_path) as readers:
        for what, mutant in made:
            path.write_bytes(mutant)
            assert not disagreement(readers.verdicts(path)), what


@pytest.mark.parametrize("key", ["tokenizer.ggml.model", "tokenizer.ggml.tokens"])
def test_a_key_that_lost_its_name_is_missed_by_all_readers_or_by_none(tmp_path: Path, original: Path, key: str) -> None:
    original.write_bytes(original.read_bytes().replace(key.encode(), key[:-1].encode() + b"!"))
    with GgufReaders(tmp_path) as readers:
        assert not disagreement(readers.verdicts(original))


def test_a_disagreement_names_who_refuses_and_why() -> None:
    assert disagreement({"show": "", "service": "It has no tokenizer."}) == (
        "service refuses what others accept: It has no tokenizer."
    )
