"""A vocabulary as the metadata of a GGUF: the keys that llama.cpp's runtime reads, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quantizer.layout import Entry, encode_entry
from quantizer.tokenizers.chat_templates import DEFAULT
from quantizer.tokenizers.vocabulary import Vocabulary

__all__ = ["vocabulary_entries"]

_PREFIX = "tokenizer.ggml"
_CHAT_TEMPLATE = "tokenizer.chat_template"
# where llama.cpp's key is not the role's short name; one of them is misspelt there
_ROLE_KEYS = {"unk": "unknown", "pad": "padding", "sep": "seperator"}


def vocabulary_entries(vocabulary: Vocabulary) -> Iterator[Entry]:
    """Every entry that describes `vocabulary`, the long lists first."""
    alphabet = vocabulary.alphabet
    yield encode_entry(f"{_PREFIX}.model", alphabet.model, "str")
    yield encode_entry(f"{_PREFIX}.pre", alphabet.pre_tokenizer, "str")
    yield encode_entry(f"{_PREFIX}.tokens", [token.text for token in vocabulary.tokens], "str[]")
    if alphabet.has_scores:
        yield encode_entry(f"{_PREFIX}.scores", [token.score for token in vocabulary.tokens], "f32[]")
    yield encode_entry(f"{_PREFIX}.token_type", [int(token.type) for token in vocabulary.tokens], "i32[]")
    if vocabulary.n_token_types is not None:
        yield encode_entry(f"{_PREFIX}.token_type_count", vocabulary.n_token_types, "u32")
    if alphabet.merges:
        yield encode_entry(f"{_PREFIX}.merges", alphabet.merges, "str[]")
    if alphabet.charsmap:
        yield encode_entry(f"{_PREFIX}.precompiled_charsmap", alphabet.charsmap, "u8[]")
    for role, token_id in vocabulary.special_ids.items():
        yield encode_entry(f"{_PREFIX}.{_ROLE_KEYS.get(role, role)}_token_id", token_id, "u32")
    for role, is_added in vocabulary.additions.items():
        yield encode_entry(f"{_PREFIX}.add_{role}_token", is_added, "bool")
    for key, value in alphabet.flags.items():
        yield encode_entry(f"{_PREFIX}.{key}", value, "bool")
    yield from _chat_templates(vocabulary)


def _chat_templates(vocabulary: Vocabulary) -> Iterator[Entry]:
    named = {re.sub(r"[^A-Za-z0-9]", "_", name): text for name, text in vocabulary.chat_templates.items()}
    if DEFAULT in named:
        yield encode_entry(_CHAT_TEMPLATE, named.pop(DEFAULT), "str")
    if named:
        yield encode_entry("tokenizer.chat_templates", list(named), "str[]")
    for name, text in named.items():
        yield encode_entry(f"{_CHAT_TEMPLATE}.{name}", text, "str")
