from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.validation import check_answers, validate_gguf
from tests.quantizer.gguf_files import tiny_llama

Edit = Callable[[gguf.GGUFWriter], None]


def typed(kind: str) -> Edit:
    return lambda writer: writer.add_type(kind)


def without_tokenizer(writer: gguf.GGUFWriter) -> None:
    for fields in writer.kv_data:
        for key in [key for key in fields if key.startswith("tokenizer.")]:
            fields.pop(key)


def header(folder: Path, edit: Edit | None = None, architecture: str = "llama") -> Header:
    return read_header(tiny_llama(folder / "file.gguf", edit, architecture=architecture))


@pytest.mark.parametrize(
    ("edit", "architecture", "told"),
    [
        (typed("adapter"), "llama", r"file\.gguf is a LoRA adapter, not a model\. .*--lora"),
        (typed("mmproj"), "clip", "is a multimodal projector"),
        (None, "clip", "is a multimodal projector"),
        (None, "controlvector", "is a control vector, .*--control-vector"),
        (without_tokenizer, "llama", r"has no tokenizer, so it cannot process text\. Convert it again"),
    ],
)
def test_a_file_that_cannot_generate_text_is_refused_by_its_kind(
    tmp_path: Path, edit: Edit | None, architecture: str, told: str
) -> None:
    with pytest.raises(ModelFileError, match=told):
        check_answers(header(tmp_path, edit, architecture), needs_tokenizer=True)


def test_a_plan_needs_no_tokenizer_and_a_model_passes(tmp_path: Path) -> None:
    check_answers(header(tmp_path, without_tokenizer), needs_tokenizer=False)
    check_answers(header(tmp_path, typed("model")), needs_tokenizer=True)


def test_an_importance_matrix_is_refused_as_one(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.imatrix.gguf", typed("imatrix"))
    with pytest.raises(ModelFileError, match=r"is an importance matrix, not a model\. .*--imatrix"):
        validate_gguf(path)
