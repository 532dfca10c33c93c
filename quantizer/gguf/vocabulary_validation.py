"""Validation of a vocabulary: its tokens and merges, the tokens around a prompt, and the map of characters.

Source: the assertions of llama.cpp src/llama-vocab.cpp as vendored in llama-cpp-python 0.3.36. Special ids out of range
are valid where llama.cpp falls back to its defaults: published files have them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from quantizer.gguf.gguf_reader import STRING, ArrayRef, StringArray
from quantizer.gguf.header import Header

_TOKENS = "tokenizer.ggml.tokens"
_MERGES = "tokenizer.ggml.merges"
_MODEL = "tokenizer.ggml.model"
_MAX_TOKENS = 2_000_000
_MAX_TOKEN_BYTES = 65_536
_INT32, _FLOAT32 = 5, 6
# Arrays that run parallel to the tokens, with the element types llama.cpp reads them as.
_PARALLEL = {"tokenizer.ggml.scores": (_FLOAT32, _INT32), "tokenizer.ggml.token_type": (_INT32,)}
_BYTE_TYPE = 6
_BYTE_TOKENS = {f"<0x{byte:02X}>".encode() for byte in range(256)}
# These tokenizers look bytes up by name, or assert that there is a newline token.
_NEEDS_BYTE_TOKENS = {"llama", "plamo2"}
_NEEDS_NEWLINE = {"rwkv"}
# This one aborts when a token that is a byte is turned into text.
_WITHOUT_BYTES = {"bert"}


def vocabulary_faults(header: Header) -> Iterator[str]:
    """Yield every reason why llama.cpp could not survive the vocabulary of this file."""
    if _TOKENS not in header.fields:
        return
    if not header.text(_MODEL):  # llama.cpp loads no vocabulary of an unnamed kind
        yield "it has tokens but does not name their tokenizer"
        return
    if not isinstance(header.fields[_TOKENS].value, ArrayRef) or header.array_ref(_TOKENS).element_type != STRING:
        yield "its vocabulary is not a list of strings"
        return
    n_tokens = header.array_ref(_TOKENS).count
    if not 0 < n_tokens <= _MAX_TOKENS:
        yield f"its vocabulary has {n_tokens} tokens"
        return
    for key, element_types in _PARALLEL.items():
        field = header.fields.get(key)
        if field is None:
            continue
        ref = field.value
        if not isinstance(ref, ArrayRef) or ref.element_type not in element_types:
            yield f"{key} is not a list of numbers"
        elif ref.count != n_tokens:
            yield f"{key} has {ref.count} entries for {n_tokens} tokens"
    yield from _frame_faults(header, n_tokens)
    yield from _character_map_faults(header)
    yield from _faults_in(_Vocabulary.of(header))


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The vocabulary in a file. Vocabularies with the same bytes are equal: many models share one."""

    model: str
    arrays: tuple[tuple[str, int, int, bytes], ...]  # key, type, count, SHA-256
    header: Header = field(compare=False)

    @classmethod
    def of(cls, header: Header) -> _Vocabulary:
        arrays = []
        for key in (_TOKENS, *_PARALLEL, _MERGES):
            value = header.fields[key].value if key in header.fields else None
            if isinstance(value, ArrayRef):
                sha256 = hashlib.sha256(header.source.read(value.start, value.stop)).digest()
                arrays.append((key, value.element_type, value.count, sha256))
        return cls(header.text(_MODEL), tuple(arrays), header)


@lru_cache(maxsize=8)  # there are hundreds of thousands of tokens and merges
def _faults_in(vocabulary: _Vocabulary) -> tuple[str, ...]:
    header = vocabulary.header
    return (*_token_faults(header, header.array_ref(_TOKENS).count), *_merge_faults(header))


def _as_read(header: Header, key: str) -> StringArray:
    """Return the strings of an array as llama.cpp reads them: up to a NUL, so that two may become one."""
    return header.string_array(key).up_to_nul()


def _token_faults(header: Header, n_tokens: int) -> Iterator[str]:
    tokens = _as_read(header, _TOKENS)
    if n_repeated := n_tokens - _n_distinct(tokens):
        yield f"{n_repeated} of its tokens are repeated"
    if tokens.longest_bytes() > _MAX_TOKEN_BYTES:
        yield "one of its tokens is too long"
    model = header.text(_MODEL)
    if model in _NEEDS_NEWLINE and not tokens.present({b"\\n", b"\n"}):
        yield "its vocabulary has no newline token"
    yield from _byte_faults(header, tokens, model)


def _n_distinct(tokens: StringArray) -> int:
    """Return the number of names. llama.cpp names empty tokens by their index, and aborts on a repeated name."""
    names = {b"[EMPTY_%d]" % index for index in tokens.empty_indices()}
    return tokens.n_distinct() - bool(names) + len(names) - len(tokens.present(names))


def _byte_faults(header: Header, tokens: StringArray, model: str) -> Iterator[str]:
    if model in _NEEDS_BYTE_TOKENS and tokens.present(_BYTE_TOKENS) != _BYTE_TOKENS and not tokens.present({b"\n"}):
        yield "its vocabulary lacks byte tokens"
    if "tokenizer.ggml.token_type" not in header.fields:
        return
    kinds = header.numbers("tokenizer.ggml.token_type")
    if _BYTE_TYPE in kinds and model in _WITHOUT_BYTES:
        yield "some of its tokens are bytes, which its tokenizer does not support"
    elif _BYTE_TYPE in kinds:
        named = tokens.select([index for index, kind in enumerate(kinds) if kind == _BYTE_TYPE])
        yield from (f"the byte token {token[:32]!r} is invalid" for token in named if token not in _BYTE_TOKENS)


def _merge_faults(header: Header) -> Iterator[str]:
    if _MERGES not in header.fields:
        return
    if not isinstance(header.fields[_MERGES].value, ArrayRef) or header.array_ref(_MERGES).element_type != STRING:
        yield "its merges are not a list of strings"
        return
    # llama.cpp searches for the separating space behind the first byte
    if not _as_read(header, _MERGES).all_contain_after_first(b" "):
        yield "one of its merges is not a pair"


_MAP_KEY = "tokenizer.ggml.precompiled_charsmap"
_MAP_READ_BY = "t5"
_N_SIZE = 4  # bytes: the first number, the size of the array in bytes
_MAX_MAP_BYTES = 16 << 20  # sentencepiece's largest has 0.4 MB
_IS_VALUE = 1 << 31
_BYTE_TYPES = (0, 1)  # unsigned and signed


def _character_map_faults(header: Header) -> tuple[str, ...]:
    if _MAP_KEY not in header.fields or header.text("tokenizer.ggml.model") != _MAP_READ_BY:
        return ()
    try:
        ref = header.array_ref(_MAP_KEY)
    except KeyError:
        return ("its precompiled_charsmap is not a list",)
    if ref.element_type not in _BYTE_TYPES or ref.count > _MAX_MAP_BYTES:
        return ("its precompiled_charsmap is not a list of bytes, or too long",)
    is_sound = is_sound_map(header.source.read(ref.start, ref.stop))
    return () if is_sound else ("its precompiled_charsmap points beyond its end",)


def is_sound_map(content: bytes) -> bool:
    """Return whether no text leads beyond the array or the replacements of a map.
    Every entry that could be a child of another is checked, whether or not a text leads there."""
    import numpy as np  # not before a file has a map: the service starts without it

    n_array = int.from_bytes(content[:_N_SIZE], "little")
    replacements = content[_N_SIZE + n_array :]
    if len(content) > _MAX_MAP_BYTES or not replacements.endswith(b"\0"):
        return False
    nodes = np.frombuffer(content, "<u4", n_array // 4, _N_SIZE)
    if not len(nodes):
        return True  # nothing is replaced
    bases = (nodes >> 10) << ((nodes & (1 << 9)) >> 6)
    places = np.arange(len(nodes), dtype=np.uint32)
    labels = nodes & (_IS_VALUE | 0xFF)
    is_child = (labels > 0) & (labels < _IS_VALUE)
    next_bases = (places ^ bases)[is_child]
    if (next_bases | 0xFF).max(initial=bases[0] | 0xFF) >= len(nodes):  # whatever byte comes next
        return False
    is_leaf = ((nodes[is_child] >> 8) & 1).astype(bool)
    offsets = nodes[next_bases[is_leaf]] & (_IS_VALUE - 1)
    return int(offsets.max(initial=0)) < len(replacements)


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in the frame: the default id of its token, None for none, and whether it is filled by default.
    What `is_fixed` is filled whatever the file says."""

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


def _frame_faults(header: Header, n_tokens: int) -> Iterator[str]:
    """Yield each place around texts whose token a vocabulary of `n_tokens` lacks: llama.cpp would abort there."""
    for place in _PLACES.get(header.text("tokenizer.ggml.model"), ()):
        is_filled = header.fields.get(f"tokenizer.ggml.add_{place.key}_token")
        if not place.is_fixed and not (place.is_filled if is_filled is None else is_filled.value):
            continue
        stored = header.integer(f"tokenizer.ggml.{place.key}_token_id")
        ids = (token_id for token_id in (stored, place.default) if token_id is not None)
        if not any(0 <= token_id < n_tokens for token_id in ids):
            yield f"its tokenizer adds a {place.key} token to prompts but defines none"
