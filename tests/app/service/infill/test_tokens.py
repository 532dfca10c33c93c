from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from app.service.infill.tokens import InfillTokens, infill_tokens_of
from quantizer.gguf.header import read_header
from tests.quantizer.gguf_files import byte_level_tokens, tiny_llama


def _tokens(path: Path, **ids: int) -> InfillTokens | None:
    def edit(writer: gguf.GGUFWriter) -> None:
        for name, token in ids.items():
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)

    return infill_tokens_of(read_header(tiny_llama(path / "model.gguf", edit)))


def _spelled(path: Path, *spellings: str) -> InfillTokens | None:
    def edit(writer: gguf.GGUFWriter) -> None:
        tokens = [*byte_level_tokens()[: 272 - len(spellings)], *spellings]
        for data in writer.kv_data:
            data.pop("tokenizer.ggml.tokens", None)
        writer.add_token_list(tokens)

    return infill_tokens_of(read_header(tiny_llama(path / "model.gguf", edit)))


def test_a_file_has_the_ids(tmp_path: Path) -> None:
    ids = {"fim_pre": 260, "fim_suf": 261, "fim_mid": 262, "fim_rep": 263, "fim_sep": 264, "bos": 265}
    assert _tokens(tmp_path, **ids) == InfillTokens(
        prefix=260, suffix=261, middle=262, repository=263, separator=264, begin=265
    )


def test_older_files_have_other_keys(tmp_path: Path) -> None:
    tokens = _tokens(tmp_path, prefix=260, suffix=261, middle=262)
    assert tokens == InfillTokens(prefix=260, suffix=261, middle=262)


@pytest.mark.parametrize("ids", [{}, {"fim_pre": 260}, {"fim_pre": 260, "fim_suf": 272}])
def test_a_model_without_both_sides_cannot_fill_in_the_middle(tmp_path: Path, ids: dict[str, int]) -> None:
    assert _tokens(tmp_path, **ids) is None


def test_tokens_are_known_by_their_spelling(tmp_path: Path) -> None:
    assert _spelled(tmp_path, "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>") == InfillTokens(
        prefix=268, suffix=269, middle=270, repository=271
    )


def test_mistrals_models_have_the_suffix_first(tmp_path: Path) -> None:
    tokens = _spelled(tmp_path, "[PREFIX]", "[MIDDLE]", "[SUFFIX]")
    assert tokens == InfillTokens(prefix=269, suffix=271)
    assert tokens.is_suffix_first
