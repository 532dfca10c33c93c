from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from quantizer.gguf.errors import ModelFileError
from quantizer.gguf.validation import validate_gguf
from tests.quantizer.gguf_files import tiny_llama

Edit = Callable[[gguf.GGUFWriter], None]


def vocabulary(model: str, *, byte_type: int = 1, **entries: int | bool) -> Edit:
    """The 272 tokens as those of another kind of tokenizer, all but one of the type NORMAL, with more entries."""

    def edit(writer: gguf.GGUFWriter) -> None:
        for key in ("model", "token_type", "eos_token_id", "merges"):
            writer.kv_data[0].pop(f"tokenizer.ggml.{key}")
        writer.add_tokenizer_model(model)
        writer.add_token_types([byte_type, *[1] * 271])
        for key, value in entries.items():
            add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
            add(f"tokenizer.ggml.{key}", value)

    return edit


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (vocabulary("t5", add_bos_token=True), "bos"),
        (vocabulary("t5", add_bos_token=True, bos_token_id=272), "bos"),
        (vocabulary("gemma4"), "bos"),
        (vocabulary("gemma4", bos_token_id=1, add_eos_token=True), "eos"),
    ],
)
def test_a_token_around_texts_that_the_vocabulary_lacks_would_abort_llama_cpp(
    tmp_path: Path, edit: Edit, place: str
) -> None:
    with pytest.raises(ModelFileError, match=f"puts a {place} token around texts and has none"):
        validate_gguf(tiny_llama(tmp_path / "m.gguf", edit))


@pytest.mark.parametrize(
    "edit",
    [
        vocabulary("t5"),
        vocabulary("t5", add_bos_token=True, bos_token_id=3),
        vocabulary("t5", add_bos_token=False, bos_token_id=4_000),
        vocabulary("bert"),
        vocabulary("gpt2", add_bos_token=True, bos_token_id=4_000),
        vocabulary("gemma4", bos_token_id=1),
    ],
)
def test_a_token_that_is_there_or_that_llama_cpp_has_a_default_for_is_honest(tmp_path: Path, edit: Edit) -> None:
    validate_gguf(tiny_llama(tmp_path / "m.gguf", edit))


def test_a_byte_of_a_tokenizer_without_bytes_would_abort_llama_cpp(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="its tokenizer has no bytes"):
        validate_gguf(tiny_llama(tmp_path / "m.gguf", vocabulary("bert", byte_type=6)))
