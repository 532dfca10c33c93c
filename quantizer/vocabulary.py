"""What the vocabulary in a GGUF must be like for llama.cpp to survive it.

Source: the assertions of llama.cpp src/llama-vocab.cpp as vendored in llama-cpp-python 0.3.36. Special ids out of range
are not a fault: honest files have them, and llama.cpp falls back to its defaults.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from quantizer.header import Header
from quantizer.strings import Strings
from quantizer.wire import STRING, ArrayRef

__all__ = ["vocabulary_faults"]

_TOKENS = "tokenizer.ggml.tokens"
_MERGES = "tokenizer.ggml.merges"
_MODEL = "tokenizer.ggml.model"
_MAX_TOKENS = 2_000_000
_MAX_TOKEN_BYTES = 65_536
_INT32, _FLOAT32 = 5, 6
# Arrays that run parallel to the tokens, with the element types llama.cpp reads them as.
_PARALLEL = {
    "tokenizer.ggml.scores": (_FLOAT32, _INT32),
    "tokenizer.ggml.token_type": (_INT32,),
}
_BYTE_TYPE = 6
_BYTE_TOKENS = {f"<0x{byte:02X}>".encode() for byte in range(256)}
# These tokenizers look bytes up by name, or assert that there is a newline token.
_NEEDS_BYTE_TOKENS = {"llama", "plamo2"}
_NEEDS_NEWLINE = {"rwkv"}
_N_REMEMBERED = 8


def vocabulary_faults(header: Header) -> Iterator[str]:
    """Every reason why llama.cpp could not live with the vocabulary of this file."""
    if _TOKENS not in header.fields:
        return
    if not isinstance(header.fields[_TOKENS].value, ArrayRef) or header.array_ref(_TOKENS).element_type != STRING:
        yield "its vocabulary is not a list of strings"
        return
    n_tokens = header.array_ref(_TOKENS).count
    if not 0 < n_tokens <= _MAX_TOKENS:
        yield f"its vocabulary has {n_tokens} tokens"
        return
    yield from _parallel_faults(header, n_tokens)
    yield from _faults_in(_Vocabulary.of(header))


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The vocabulary in a file, the same as any other with the same bytes: most models share theirs with others."""

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


@lru_cache(maxsize=_N_REMEMBERED)
def _faults_in(vocabulary: _Vocabulary) -> tuple[str, ...]:
    """Look into every token and merge, of which there are hundreds of thousands."""
    header = vocabulary.header
    return (*_token_faults(header, header.array_ref(_TOKENS).count), *_merge_faults(header))


def _parallel_faults(header: Header, n_tokens: int) -> Iterator[str]:
    for key, element_types in _PARALLEL.items():
        field = header.fields.get(key)
        if field is None:
            continue
        ref = field.value
        if not isinstance(ref, ArrayRef) or ref.element_type not in element_types:
            yield f"{key} is not a list of numbers"
        elif ref.count != n_tokens:
            yield f"{key} has {ref.count} entries for {n_tokens} tokens"


def _as_read(header: Header, key: str) -> Strings:
    """The strings of an array as llama.cpp reads them: up to a NUL, which may make two of them one."""
    return header.table(key).up_to_nul()


def _token_faults(header: Header, n_tokens: int) -> Iterator[str]:
    tokens = _as_read(header, _TOKENS)
    if n_repeated := n_tokens - _n_distinct(tokens):
        yield f"{n_repeated} of its tokens are repeated"
    if tokens.longest_bytes() > _MAX_TOKEN_BYTES:
        yield "one of its tokens is absurdly long"
    model = header.text(_MODEL)
    if model in _NEEDS_NEWLINE and not tokens.held({b"\\n", b"\n"}):
        yield "its vocabulary has no newline token"
    yield from _byte_faults(header, tokens, model)


def _n_distinct(tokens: Strings) -> int:
    """How many names there are: llama.cpp gives each empty token one of its own, and aborts on a repeated name."""
    names = {b"[EMPTY_%d]" % index for index in tokens.empty()}
    return tokens.n_distinct() - bool(names) + len(names) - len(tokens.held(names))


def _byte_faults(header: Header, tokens: Strings, model: str) -> Iterator[str]:
    if model in _NEEDS_BYTE_TOKENS and tokens.held(_BYTE_TOKENS) != _BYTE_TOKENS and not tokens.held({b"\n"}):
        yield "its vocabulary lacks byte tokens"
    if "tokenizer.ggml.token_type" not in header.fields:
        return
    kinds = header.numbers("tokenizer.ggml.token_type")
    if _BYTE_TYPE in kinds:
        named = tokens.at([index for index, kind in enumerate(kinds) if kind == _BYTE_TYPE])
        yield from (f"the token {token[:32]!r} is no byte" for token in named if token not in _BYTE_TOKENS)


def _merge_faults(header: Header) -> Iterator[str]:
    if _MERGES not in header.fields:
        return
    if not isinstance(header.fields[_MERGES].value, ArrayRef) or header.array_ref(_MERGES).element_type != STRING:
        yield "its merges are not a list of strings"
        return
    # the first space that parts a pair is looked for behind the first byte
    if not _as_read(header, _MERGES).all_hold_behind_first(b" "):
        yield "one of its merges is not a pair"
