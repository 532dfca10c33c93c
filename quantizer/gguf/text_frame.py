"""The tokens that llama.cpp puts around a text: which ones a vocabulary asks for, and whether it has them.

Source: the defaults in `llama_vocab::impl::load` and the assertions in `tokenize` of llama.cpp src/llama-vocab.cpp, as
vendored in llama-cpp-python 0.3.36. An id out of range counts as missing there: the default of its tokenizer is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quantizer.gguf.header import Header

_PREFIX = "tokenizer.ggml"


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in the frame: the default id of its token, None for none, and whether it is filled by default.

    What `is_fixed` is filled whatever the file says.
    """

    key: str
    default: int | None
    is_filled: bool
    is_fixed: bool = False


_BYTE_LEVEL = (_Place("bos", 11, is_filled=True), _Place("eos", 11, is_filled=False))
_PLACES = {
    "llama": (_Place("bos", 1, is_filled=True), _Place("eos", 2, is_filled=False)),
    "gpt2": _BYTE_LEVEL,  # not with every pre-tokenizer, but the default id is in all honest vocabularies
    "hybriddna": _BYTE_LEVEL,
    "whitespace": _BYTE_LEVEL,
    "bert": (
        _Place("bos", 101, is_filled=True, is_fixed=True),
        _Place("seperator", 102, is_filled=True, is_fixed=True),  # as the key is spelt
    ),
    "t5": (_Place("bos", None, is_filled=False), _Place("eos", 1, is_filled=True)),
    "gemma4": (_Place("bos", None, is_filled=True, is_fixed=True), _Place("eos", None, is_filled=False)),
}


def frame_faults(header: Header, n_tokens: int) -> Iterator[str]:
    """Yield each place around texts whose token a vocabulary of `n_tokens` lacks: llama.cpp would abort there."""
    for place in _PLACES.get(header.text(f"{_PREFIX}.model"), ()):
        is_filled = header.fields.get(f"{_PREFIX}.add_{place.key}_token")
        if not place.is_fixed and not (place.is_filled if is_filled is None else is_filled.value):
            continue
        stored = header.integer(f"{_PREFIX}.{place.key}_token_id")
        ids = (token_id for token_id in (stored, place.default) if token_id is not None)
        if not any(0 <= token_id < n_tokens for token_id in ids):
            yield f"its tokenizer puts a {place.key} token around texts and has none"
