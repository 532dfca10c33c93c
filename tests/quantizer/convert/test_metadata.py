from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quantizer.convert.metadata import general_entries
from quantizer.convert.source_model import FileTensor
from quantizer.gguf.gguf_reader import LocalFile
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.header_encoder import encode_header
from quantizer.gguf.tensor_types import tensor_type_named

SHARED, STACKED = ("blk.0.attn_q.weight", (1000, 2000)), ("blk.0.ffn_up_exps.weight", (1000, 3000, 8))
PHI_TOKENS = ("<unk>", "<s>", "</s>", "<|endoftext|>")


def described(folder: Path, words: tuple[str, ...] = (), *shapes: tuple[str, tuple[int, ...]]) -> Header:
    folder.mkdir()
    path = folder / "model.gguf"
    tensors = [FileTensor(name, shape, tensor_type_named("F32"), LocalFile(path, 0), 0) for name, shape in shapes]
    path.write_bytes(encode_header(list(general_entries(folder.name, folder, "llama", tensors, words)), []))
    return read_header(path)


@pytest.mark.parametrize(
    ("folder", "name"), [("phi3-tune", "Phi 3 Tune"), ("Tiny-PHI3-GPTQ", "Tiny Phi 3 GPTQ"), ("llama-3", "Llama 3")]
)
def test_a_name_that_promises_the_tokens_of_phi_3_is_spelt_apart(folder: str, name: str, tmp_path: Path) -> None:
    assert described(tmp_path / folder, ("hello",)).text("general.name") == name


def test_a_model_with_the_tokens_of_phi_3_keeps_its_name(tmp_path: Path) -> None:
    assert described(tmp_path / "phi3-tune", PHI_TOKENS).text("general.name") == "Phi3 Tune"


@pytest.mark.parametrize(("tensors", "label"), [([SHARED], "2.0M"), ([SHARED, STACKED], "8x5.0M")])
def test_a_size_label_has_one_expert_and_their_number(tensors: list[Any], label: str, tmp_path: Path) -> None:
    assert described(tmp_path / "model", (), *tensors).text("general.size_label") == label
