"""The special tokens of a model file for fill-in-the-middle.

Owns their metadata keys and the spellings by family. Independent of prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quantizer.gguf.header import Header

_TOKENS = "tokenizer.ggml.tokens"

# The metadata keys, the newer first, and the spellings in files without them (source: llama.cpp
# src/llama-vocab.cpp @ the version vendored in llama-cpp-python 0.3.36; mistral-common for [PREFIX] and [SUFFIX]).
_KEYS: Mapping[str, tuple[str, ...]] = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "repository": ("fim_rep_token_id",),
    "separator": ("fim_sep_token_id",),
}
_SPELLINGS: Mapping[str, str] = {
    **dict.fromkeys(
        ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>"),
        "prefix",
    ),
    **dict.fromkeys(
        ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>"),
        "suffix",
    ),
    **dict.fromkeys(
        ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>"),
        "middle",
    ),
    **dict.fromkeys(("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"), "repository"),
    "<|file_sep|>": "separator",
    "<|prefix|>": "prefix",
    "<|suffix|>": "suffix",
    "<|middle|>": "middle",
    "[PREFIX]": "prefix",
    "[SUFFIX]": "suffix",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillTokens:
    """Ids of the tokens before the prefix, the suffix, and the text to be generated.

    A model without `middle` generates right after the prefix, which then comes last (`is_suffix_first`). `repository`
    and `separator` precede the names of a project and its files; `begin` is BOS, where the engine adds it.
    """

    prefix: int
    suffix: int
    middle: int | None = None
    repository: int | None = None
    separator: int | None = None
    begin: int | None = None

    @property
    def is_suffix_first(self) -> bool:
        return self.middle is None


def infill_tokens_of(header: Header) -> InfillTokens | None:
    """Return the tokens of the model of `header`, None if it has none."""
    if _TOKENS not in header.fields:
        return None
    ids = _ids_by_key(header) or _ids_by_spelling(header)
    if "prefix" not in ids or "suffix" not in ids:
        return None
    return InfillTokens(**ids, begin=header.integer("tokenizer.ggml.bos_token_id"))


def _ids_by_key(header: Header) -> dict[str, int]:
    """Return the ids in the metadata, ignoring those beyond the vocabulary."""
    n_tokens = header.array_ref(_TOKENS).count
    found = {
        name: [token for key in keys if (token := header.integer(f"tokenizer.ggml.{key}")) is not None]
        for name, keys in _KEYS.items()
    }
    return {name: tokens[0] for name, tokens in found.items() if tokens and 0 <= tokens[0] < n_tokens}


def _ids_by_spelling(header: Header) -> dict[str, int]:
    """Return the ids of the tokens with a known spelling, the first of each."""
    ids: dict[str, int] = {}
    for token, text in enumerate(header.array(_TOKENS)):
        if isinstance(text, str) and text in _SPELLINGS:
            ids.setdefault(_SPELLINGS[text], token)
    return ids
