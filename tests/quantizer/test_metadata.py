from __future__ import annotations

from pathlib import Path

import pytest

from quantizer.header import read_header
from quantizer.layout import encode_header
from quantizer.metadata import describe

PHI_TOKENS = ("<unk>", "<s>", "</s>", "<|endoftext|>")


def name_of(folder: Path, words: tuple[str, ...]) -> str:
    folder.mkdir()
    path = folder / "model.gguf"
    path.write_bytes(encode_header(list(describe(folder.name, folder, "llama", [], words)), []))
    return read_header(path).text("general.name")


@pytest.mark.parametrize(
    ("folder", "name"), [("phi3-tune", "Phi 3 Tune"), ("Tiny-PHI3-GPTQ", "Tiny Phi 3 GPTQ"), ("llama-3", "Llama 3")]
)
def test_a_name_that_promises_the_tokens_of_phi_3_is_spelt_apart(folder: str, name: str, tmp_path: Path) -> None:
    assert name_of(tmp_path / folder, ("hello",)) == name


def test_a_model_with_the_tokens_of_phi_3_keeps_its_name(tmp_path: Path) -> None:
    assert name_of(tmp_path / "phi3-tune", PHI_TOKENS) == "Phi3 Tune"
