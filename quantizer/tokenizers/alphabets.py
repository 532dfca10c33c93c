"""The alphabet of each kind of tokenizer, as llama.cpp reads it.

Byte-level BPE ("gpt2"). SentencePiece's BPE ("llama"), which joins pieces of text with spaces written ▁ by score, and
spells the rest in bytes; scores are in tokenizer.model, or follow from the order of the merges in tokenizer.json.
SentencePiece's unigram model ("t5"): pieces with log-probabilities, and the likeliest segmentation. WordPiece ("bert"):
words cut into the longest known pieces; the runtime marks the piece that begins a word with ▁, where BERT marks those
that continue one with ##.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantizer.checkpoint.config import CheckpointError
from quantizer.checkpoint.safetensors import as_object
from quantizer.gguf.vocabulary_validation import is_sound_map
from quantizer.tokenizers.pretokenizers import Preparation, preparation, pretokenizer_name
from quantizer.tokenizers.sentencepiece_model import PieceModel, read_piece_model
from quantizer.tokenizers.vocabulary import MAX_TOKENS, Alphabet, Token, TokenizerFolder, TokenType, read_text, unsound


def read_byte_level(folder: TokenizerFolder) -> Alphabet:
    """Read tokenizer.json. Raises CheckpointError for rewriting, an unknown way to split, and what is not sound."""
    found = preparation(folder.tokenizer)
    # composing text (NFC) is left to whoever types it, as llama.cpp does not
    if found.rewriting not in ((), ("NFC",)):
        raise found.refusal()
    model = folder.model
    return Alphabet(
        model="gpt2",
        tokens={token_id: Token(text) for text, token_id in token_ids(model).items()},
        pre_tokenizer=pretokenizer_name(found.cuts, bool(model.get("ignore_merges", False))),
        merges=tuple(" ".join(part.replace(" ", "Ġ") for part in pair) for pair in merge_pairs(model)),
    )


def token_ids(model: Mapping[str, Any]) -> dict[str, int]:
    """Return text to id, each id once. Raises CheckpointError for anything else."""
    ids = as_object(model.get("vocab"), "the vocabulary in tokenizer.json")
    is_sound = 0 < len(ids) <= MAX_TOKENS and all(type(i) is int and 0 <= i < MAX_TOKENS for i in ids.values())
    if not is_sound or len(set(ids.values())) != len(ids):
        raise unsound("The vocabulary in tokenizer.json")
    return ids


def merge_pairs(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return pairs to merge, the first first. Raises CheckpointError when there are none, or one is no pair."""
    merges = model.get("merges")
    if not isinstance(merges, list) or not merges:
        raise CheckpointError("tokenizer.json has no merges.", "Download the checkpoint again.")
    pairs = []
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge  # a string in older files, a list in newer ones
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
            raise CheckpointError(
                f"tokenizer.json contains an invalid merge rule: {str(merge)[:64]!r}.", "Download it again."
            )
        pairs.append((parts[0], parts[1]))
    return pairs


_MODEL_NAME = "llama"
_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_SPACES = "Replace ' ' '▁'"
# whether a space is put before a text
_ADDS_SPACE_PREFIX = {
    Preparation(("Prepend ▁", _SPACES), ()): True,
    Preparation((_SPACES,), ()): False,
    Preparation((_SPACES,), ("  (MergedWithPrevious)",)): False,
    Preparation((), ("Metaspace first",)): True,
    Preparation((), ("Metaspace always",)): True,
    Preparation((), ("Metaspace never",)): False,
}


def read_sentence_bpe(folder: TokenizerFolder) -> Alphabet:
    """Read a tokenizer.json with byte fallback, and the scores in tokenizer.model where there is one. Raises
    CheckpointError when text is prepared in a way that llama.cpp does not support, or bytes have no tokens."""
    found = preparation(folder.tokenizer)
    if found not in _ADDS_SPACE_PREFIX:
        raise found.refusal()
    space_prefix = _ADDS_SPACE_PREFIX[found]
    path = folder.file("tokenizer.model")
    if path is not None:
        return _alphabet(dict(enumerate(read_piece_model(path).pieces)), space_prefix)
    return _alphabet(_scored_by_merges(folder), space_prefix)


def alphabet_of_pieces(model: PieceModel, name: str) -> Alphabet:
    """Return the vocabulary of the tokenizer.model called `name`, alone. Raises as `read_sentence_bpe` does."""
    if model.charsmap or model.removes_extra_spaces or model.has_space_suffix:
        raise CheckpointError(
            f"{name} rewrites text or drops spaces, which llama.cpp does not support for this kind of tokenizer.",
            "Look for a GGUF of this model.",
        )
    tokens = dict(enumerate(model.pieces))
    return _alphabet(tokens, model.adds_space_prefix, model.special_ids)


def _alphabet(
    tokens: Mapping[int, Token], adds_space_prefix: bool, special_ids: Mapping[str, int] | None = None
) -> Alphabet:
    if not _BYTES.issubset(token.text for token in tokens.values()):
        raise CheckpointError(
            "The tokenizer has no tokens for single bytes, which llama.cpp needs for this kind.",
            "Look for a GGUF of this model.",
        )
    return Alphabet(
        model=_MODEL_NAME,
        # the runtime searches for user-defined pieces in text that still has its spaces
        tokens={
            token_id: replace(token, text=token.text.replace("▁", " "))
            if token.type is TokenType.USER_DEFINED
            else token
            for token_id, token in tokens.items()
        },
        flags={"add_space_prefix": adds_space_prefix},
        special_ids=special_ids or {},
    )


def _scored_by_merges(folder: TokenizerFolder) -> dict[int, Token]:
    """Return a piece that an earlier merge makes scores higher, so that the runtime joins in the same order."""
    model = folder.model
    ranks: dict[str, int] = {}
    for left, right in merge_pairs(model):
        ranks.setdefault(left + right, len(ranks))
    unknown = model.get("unk_token")
    kinds = dict.fromkeys(_BYTES, TokenType.BYTE)
    if isinstance(unknown, str):
        kinds[unknown] = TokenType.UNKNOWN
    return {
        token_id: Token(text, kinds.get(text, TokenType.NORMAL), -float(ranks.get(text, len(ranks))))
        for text, token_id in token_ids(model).items()
    }


_WORDPIECE = "bert"
_GOES_ON = "##"
_MAX_LIST_BYTES = 64 << 20
_AS_BERT = Preparation(("BertNormalizer",), ("BertPreTokenizer",))
# the names that BERT's tokenizer has when its settings give no other
_ROLE_NAMES = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}


def read_wordpiece(folder: TokenizerFolder) -> Alphabet:
    """Read tokenizer.json. Raises CheckpointError when text is prepared or pieces are marked otherwise than BERT's. Our
    engine splits words as the original (`app/engine/wordpiece.py`), llama.cpp's other programs nearly so."""
    found = preparation(folder.tokenizer)
    if found != _AS_BERT:
        raise found.refusal()
    if folder.model.get("continuing_subword_prefix", _GOES_ON) != _GOES_ON:
        raise CheckpointError("The tokenizer's continuing_subword_prefix is not ##.", "Look for a GGUF of this model.")
    options = as_object(folder.tokenizer["normalizer"], "the normalizer in tokenizer.json")
    return _wordpiece_alphabet(token_ids(folder.model), options.get("lowercase", True), options.get("strip_accents"))


def read_word_list(folder: TokenizerFolder, path: Path) -> Alphabet:
    """Read vocab.txt, one token a line. Raises CheckpointError when it is not sound or Chinese is not split."""
    settings = folder.settings
    if settings.flag("tokenize_chinese_chars") is False:
        raise CheckpointError(
            "The tokenizer does not split Chinese characters, llama.cpp does.", "Look for a GGUF of it."
        )
    words = read_text(path, _MAX_LIST_BYTES).removesuffix("\n").split("\n")
    ids = {word.removesuffix("\r"): i for i, word in enumerate(words)}
    if len(ids) != len(words):
        raise unsound(path.name)
    names = {role: settings.text(f"{role}_token") or name for role, name in _ROLE_NAMES.items()}
    special_ids = {role: ids[name] for role, name in names.items() if name in ids}
    alphabet = _wordpiece_alphabet(ids, settings.flag("do_lower_case") is not False, settings.flag("strip_accents"))
    controls = {i: Token(words[i], TokenType.CONTROL) for i in special_ids.values()}
    return replace(alphabet, tokens={**alphabet.tokens, **controls}, special_ids=special_ids)


def _wordpiece_alphabet(ids: Mapping[str, int], is_lowercased: object, strips_accents: object) -> Alphabet:
    lowercase = bool(is_lowercased)
    return Alphabet(
        model=_WORDPIECE,
        tokens={
            token_id: Token(text.removeprefix(_GOES_ON) if text.startswith(_GOES_ON) else f"▁{text}")
            for text, token_id in ids.items()
        },
        flags={
            "normalizer.lowercase": lowercase,
            "normalizer.strip_accents": lowercase if strips_accents is None else bool(strips_accents),
        },
    )


_UNIGRAM = "t5"
_ONE_SPACE = "Replace ' {2,}' '▁'", "Replace ' {2,}' ' '"
_MAPPED = ("Precompiled",)
_MAPPED_TO_ONE_SPACE = [(*_MAPPED, *strip, step) for step in _ONE_SPACE for strip in ((), ("Strip right",))]
# (rewriting, cuts) -> (a space is put before a text, runs of spaces become one); the map of characters is what makes
# spaces of tabs and line feeds, which llama.cpp does not take for spaces
_UNIGRAM_PREPARATIONS: dict[Preparation, tuple[bool, bool]] = {
    Preparation((), ("Metaspace always",)): (True, False),
    Preparation((), ("Metaspace never",)): (False, False),
    Preparation(_MAPPED, ("Metaspace always",)): (True, False),
    Preparation(_MAPPED, ("Metaspace never",)): (False, False),
    Preparation(_MAPPED, ("WhitespaceSplit", "Metaspace always")): (True, True),
    **{Preparation(rewriting, ("Metaspace always",)): (True, True) for rewriting in _MAPPED_TO_ONE_SPACE},
}


def read_unigram(folder: TokenizerFolder) -> Alphabet:
    """Read tokenizer.json. Raises CheckpointError for what llama.cpp does not support, as bytes for unknown text."""
    found = preparation(folder.tokenizer)
    if found not in _UNIGRAM_PREPARATIONS:
        raise found.refusal()
    if folder.model.get("byte_fallback"):
        raise _no_byte_fallback("tokenizer.json")
    tokens = dict(enumerate(_scored(folder.model)))
    return _unigram_alphabet(tokens, *_UNIGRAM_PREPARATIONS[found], _charsmap(folder.tokenizer.get("normalizer")), {})


def unigram_alphabet(model: PieceModel, name: str) -> Alphabet:
    """Return the vocabulary of the tokenizer.model called `name`, alone. Raises CheckpointError like `read_unigram`."""
    if model.has_space_suffix:
        raise CheckpointError(
            f"{name} puts spaces after words, which llama.cpp does not support.", "Look for a GGUF of it."
        )
    if any(piece.type is TokenType.BYTE for piece in model.pieces):
        raise _no_byte_fallback(name)
    tokens = dict(enumerate(model.pieces))
    return _unigram_alphabet(
        tokens, model.adds_space_prefix, model.removes_extra_spaces, model.charsmap, model.special_ids
    )


def _unigram_alphabet(
    tokens: dict[int, Token], adds_prefix: bool, drops_spaces: bool, charsmap: bytes, special_ids: dict[str, int]
) -> Alphabet:
    if charsmap and not is_sound_map(charsmap):
        raise unsound("The tokenizer's map of characters")
    return Alphabet(
        model=_UNIGRAM,
        tokens=tokens,
        flags={"add_space_prefix": adds_prefix, "remove_extra_whitespaces": drops_spaces},
        charsmap=charsmap,
        special_ids=special_ids,
    )


def _scored(model: dict[str, Any]) -> Iterator[Token]:
    vocab, unknown = model.get("vocab"), model.get("unk_id")
    if not isinstance(vocab, list) or not 0 < len(vocab) <= MAX_TOKENS:
        raise unsound("The vocabulary in tokenizer.json")
    for token_id, entry in enumerate(vocab):
        if not isinstance(entry, list) or len(entry) != 2:
            raise unsound("The vocabulary in tokenizer.json")
        text, score = entry
        if not isinstance(text, str) or type(score) not in (int, float) or not abs(score) < 1e30:
            raise unsound(f"The token {str(text)[:64]!r}")
        yield Token(text, TokenType.UNKNOWN if token_id == unknown else TokenType.NORMAL, float(score))


def _charsmap(normalizer: object) -> bytes:
    """Return the compiled map of characters in a normalizer, empty when there is none."""
    if not isinstance(normalizer, dict):
        return b""
    inner = normalizer.get("normalizers")
    if isinstance(inner, list):
        return next((found for found in map(_charsmap, inner) if found), b"")
    encoded = normalizer.get("precompiled_charsmap")
    if normalizer.get("type") != "Precompiled" or not isinstance(encoded, str):
        return b""
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise unsound("The tokenizer's map of characters") from error


def _no_byte_fallback(name: str) -> CheckpointError:
    return CheckpointError(
        f"{name} falls back to bytes, which llama.cpp does not support for unigram tokenizers.",
        "Look for a GGUF of this model.",
    )
