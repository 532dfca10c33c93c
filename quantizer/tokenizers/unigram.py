"""SentencePiece's unigram model, llama.cpp's "t5": pieces with log-probabilities, and the likeliest segmentation."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from quantizer.checkpoint.errors import CheckpointError
from quantizer.gguf.character_map import is_sound_map
from quantizer.tokenizers.folder import TokenizerFolder, unsound
from quantizer.tokenizers.pretokenizers import Preparation, preparation
from quantizer.tokenizers.sentencepiece_model import PieceModel
from quantizer.tokenizers.vocabulary import MAX_TOKENS, Alphabet, Token, TokenType

_MODEL_NAME = "t5"
_ONE_SPACE = "Replace ' {2,}' '▁'", "Replace ' {2,}' ' '"
_MAPPED = ("Precompiled",)
_MAPPED_TO_ONE_SPACE = [(*_MAPPED, *strip, step) for step in _ONE_SPACE for strip in ((), ("Strip right",))]
# (rewriting, cuts) -> (a space is put before a text, runs of spaces become one); the map of characters is what makes
# spaces of tabs and line feeds, which llama.cpp does not take for spaces
_KNOWN: dict[Preparation, tuple[bool, bool]] = {
    Preparation((), ("Metaspace always",)): (True, False),
    Preparation((), ("Metaspace never",)): (False, False),
    Preparation(_MAPPED, ("Metaspace always",)): (True, False),
    Preparation(_MAPPED, ("Metaspace never",)): (False, False),
    Preparation(_MAPPED, ("WhitespaceSplit", "Metaspace always")): (True, True),
    **{Preparation(rewriting, ("Metaspace always",)): (True, True) for rewriting in _MAPPED_TO_ONE_SPACE},
}


def read_unigram(folder: TokenizerFolder) -> Alphabet:
    """Read tokenizer.json.

    Raises CheckpointError when text is prepared in a way that llama.cpp does not support, when unknown text falls back
    to bytes (there it does not), and for anything that is not sound.
    """
    found = preparation(folder.tokenizer)
    if found not in _KNOWN:
        raise found.refusal()
    if folder.model.get("byte_fallback"):
        raise _no_byte_fallback("tokenizer.json")
    tokens = dict(enumerate(_scored(folder.model)))
    return _alphabet(tokens, *_KNOWN[found], _charsmap(folder.tokenizer.get("normalizer")), {})


def alphabet_of_pieces(model: PieceModel, name: str) -> Alphabet:
    """Return the vocabulary of the tokenizer.model called `name`, alone. Raises CheckpointError like `read_unigram`."""
    if model.has_space_suffix:
        raise CheckpointError(f"{name} writes spaces behind words, which llama.cpp does not.", "Look for a GGUF of it.")
    if any(piece.type is TokenType.BYTE for piece in model.pieces):
        raise _no_byte_fallback(name)
    tokens = dict(enumerate(model.pieces))
    return _alphabet(tokens, model.adds_space_prefix, model.removes_extra_spaces, model.charsmap, model.special_ids)


def _alphabet(
    tokens: dict[int, Token], adds_prefix: bool, drops_spaces: bool, charsmap: bytes, special_ids: dict[str, int]
) -> Alphabet:
    if charsmap and not is_sound_map(charsmap):
        raise unsound("The tokenizer's map of characters")
    return Alphabet(
        model=_MODEL_NAME,
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
        f"{name} spells unknown text in bytes, which llama.cpp does not do for unigram tokenizers.",
        "Look for a GGUF of this model.",
    )
