"""WordPiece as BERT's own tokenizer does it: a text → the tokens of a vocabulary in llama.cpp's form.

llama.cpp's own is close, but not the one that the models were trained with. It drops spacing marks (vowel signs of
Devanagari, Bengali, Tamil, Sinhala), leaves Hangul composed, ends words at vertical tabs, form feeds and U+0085, and
splits words of more than 100 characters, so the vectors of such texts are those of another text. Source:
BertNormalizer, BertPreTokenizer and WordPiece of tokenizers 0.23.3. Python's table of categories decides what is a mark
and what is punctuation; that library's is of Unicode 8, so characters that are newer may differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from unicodedata import category, normalize

WORD_BEGIN = "▁"  # what llama.cpp puts before a token that begins a word; BERT marks the others, with ##
_MAX_CHARACTERS_PER_WORD = 100  # beyond which BERT knows no word
_MAX_WORDS_CACHED = 1 << 16
# CJK ideographs, each a word; the gap before U+2B920 is the library's
_IDEOGRAPHS = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f"
    "\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f]"
)


@dataclass(frozen=True, slots=True)
class WordPieceVocabulary:
    """Tokens by id, those that begin a word after WORD_BEGIN; `specials` are found in a text as they are, before
    anything else, `controls` only where special tokens are parsed. `begin` and `end` are put around a text."""

    tokens: Sequence[str]
    unknown: int
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    specials: Mapping[str, int] = field(default_factory=dict)
    controls: Mapping[str, int] = field(default_factory=dict)
    is_lowercased: bool = True
    strips_accents: bool = True


class WordPieceTokenizer:
    """Tokenizes texts with a vocabulary, whose words it keeps."""

    def __init__(self, vocabulary: WordPieceVocabulary) -> None:
        self._vocabulary = vocabulary
        special_ids = {*vocabulary.specials.values(), *vocabulary.controls.values()}
        words = [(text, i) for i, text in enumerate(vocabulary.tokens) if i not in special_ids]
        self._begins = {text.removeprefix(WORD_BEGIN): i for text, i in words if text.startswith(WORD_BEGIN)}
        self._continuations = {text: i for text, i in words if not text.startswith(WORD_BEGIN)}
        self._longest = max((len(text) for text in (*self._begins, *self._continuations)), default=0)
        self._whole: dict[bool, Mapping[str, int]] = {
            False: vocabulary.specials,
            True: {**vocabulary.specials, **vocabulary.controls},
        }
        self._splits = {parses_special: _split_pattern(whole) for parses_special, whole in self._whole.items()}
        self._cleaned, self._separated = _Cleaning(), _Separation(vocabulary)
        self._pieces = lru_cache(_MAX_WORDS_CACHED)(self._split_word)

    def __call__(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        vocabulary, whole, split = self._vocabulary, self._whole[parse_special], self._splits[parse_special]
        tokens = [*vocabulary.begin] if add_special else []
        for part in split.split(text) if split else [text]:
            tokens.extend([whole[part]] if part in whole else self._words(part))
        return [*tokens, *vocabulary.end] if add_special else tokens

    def _words(self, text: str) -> list[int]:
        text = text.translate(self._cleaned)
        if self._vocabulary.strips_accents:
            text = normalize("NFD", text)
        return [token for word in text.translate(self._separated).split() for token in self._pieces(word)]

    def _split_word(self, word: str) -> tuple[int, ...]:
        """Return the tokens of a word, the longest first: the unknown one where that does not reach its end."""
        tokens: list[int] = []
        place, known = 0, self._begins
        while place < len(word) <= _MAX_CHARACTERS_PER_WORD:
            ends = range(min(len(word), place + self._longest), place, -1)
            end = next((end for end in ends if word[place:end] in known), None)
            if end is None:
                return (self._vocabulary.unknown,)
            tokens.append(known[word[place:end]])
            place, known = end, self._continuations
        return tuple(tokens) or (self._vocabulary.unknown,)


def _split_pattern(whole: Mapping[str, int]) -> re.Pattern[str] | None:
    """Return a pattern that splits a text before and behind each of `whole`, the longest where several begin."""
    longest_first = sorted(whole, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})") if whole else None


class _Cleaning(dict[int, str | None]):
    """The first table of `str.translate`, filled as characters come: no control characters, one kind of space, and each
    ideograph apart."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        if character in "\t\n\r" or (category(character) != "Cc" and character.isspace()):
            cleaned: str | None = " "
        elif code in (0, 0xFFFD) or category(character) in ("Cc", "Cf", "Co"):
            cleaned = None
        else:
            cleaned = f" {character} " if _IDEOGRAPHS.match(character) else character
        self[code] = cleaned
        return cleaned


class _Separation(dict[int, str | None]):
    """The second table: no accents, no capitals, where the vocabulary has none, and punctuation apart. Spacing marks
    (Mc) are no accents."""

    def __init__(self, vocabulary: WordPieceVocabulary) -> None:
        super().__init__()
        self._vocabulary = vocabulary

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        if self._vocabulary.strips_accents and category(character) == "Mn":
            separated: str | None = None
        elif category(character).startswith("P") or (code < 0x80 and category(character).startswith("S")):
            separated = f" {character} "
        else:  # a character alone has no final sigma, as in the original
            separated = character.lower() if self._vocabulary.is_lowercased else character
        self[code] = separated
        return separated
