"""A synthetic byte-level BPE tokenizer of any size, with the special tokens of ChatML.

Every merge appends one letter to a piece that begins with a space, so a word is one token however large the vocabulary
is: the lexicon's words come first, then all letter strings in order of length. Knows nothing of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from string import ascii_lowercase

__all__ = ["CHATML_TEMPLATE", "N_QUIET_TOKENS", "Vocabulary", "make_vocabulary"]

CHATML_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
N_QUIET_TOKENS = 256 + len(_SPECIAL)  # bytes and special tokens: the first ids
_NORMAL_TYPE, _CONTROL_TYPE = 1, 3


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens` in order of their ids, their GGUF `types`, and `merges` as "left right" in order of rank."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]

    @property
    def end_of_text_id(self) -> int:
        return self.tokens.index("<|endoftext|>")

    @property
    def end_of_turn_id(self) -> int:
        return self.tokens.index("<|im_end|>")


def make_vocabulary(n_tokens: int, words: Sequence[str]) -> Vocabulary:
    """Return a vocabulary of exactly `n_tokens`, which must leave room for the bytes and special tokens."""
    assert n_tokens >= N_QUIET_TOKENS
    alphabet = _byte_letters()
    merged: dict[str, str] = {}
    for prefix, letter in chain(_spelling(words, alphabet[32]), _all_strings(alphabet[32])):
        if len(merged) == n_tokens - N_QUIET_TOKENS:
            break
        merged.setdefault(prefix + letter, f"{prefix} {letter}")
    types = [_NORMAL_TYPE] * 256 + [_CONTROL_TYPE] * len(_SPECIAL) + [_NORMAL_TYPE] * len(merged)
    return Vocabulary((*alphabet, *_SPECIAL, *merged), tuple(types), tuple(merged.values()))


def _spelling(words: Sequence[str], space: str) -> Iterator[tuple[str, str]]:
    """Yield (what is written so far, next letter) for each word."""
    for word in words:
        for i, letter in enumerate(word):
            yield space + word[:i], letter


def _all_strings(space: str) -> Iterator[tuple[str, str]]:
    """Yield the same for all strings of letters, shorter ones first."""
    prefixes = [space]
    while True:
        yield from ((prefix, letter) for prefix in prefixes for letter in ascii_lowercase)
        prefixes = [prefix + letter for prefix in prefixes for letter in ascii_lowercase]


def _byte_letters() -> list[str]:
    """Return the printable letter for each byte (source: GPT-2's byte-level BPE): itself, or one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(256)]
