"""BPE: byte-level, llama.cpp's "gpt2"; and SentencePiece's, llama.cpp's "llama", which joins pieces of text with spaces
written ▁ by score, and spells the rest in bytes.

Scores are in tokenizer.model; without one they follow from the order of the merges in tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantizer.checkpoint.errors import CheckpointError
from quantizer.checkpoint.safetensors import as_object
from quantizer.tokenizers.folder import TokenizerFolder, unsound
from quantizer.tokenizers.pretokenizers import Preparation, preparation, pretokenizer_name
from quantizer.tokenizers.sentencepiece_model import PieceModel, read_piece_model
from quantizer.tokenizers.vocabulary import MAX_TOKENS, Alphabet, Token, TokenType


def read_byte_level(folder: TokenizerFolder) -> Alphabet:
    """Read tokenizer.json.

    Composing text (NFC) is left to whoever types it, as llama.cpp does not; any other rewriting is refused.
    Raises CheckpointError for that, for an unknown way to split, and for anything that is not sound.
    """
    found = preparation(folder.tokenizer)
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
    return [_pair(merge) for merge in merges]


def _pair(merge: object) -> tuple[str, str]:
    """Return one pair, which older files write as a string and newer ones as a list."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
        raise CheckpointError(f"tokenizer.json has the odd merge {str(merge)[:64]!r}.", "Download it again.")
    return parts[0], parts[1]


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
    """Read a tokenizer.json with byte fallback, and the scores in tokenizer.model where there is one.

    Raises CheckpointError when text is prepared in a way that llama.cpp does not support, or bytes have no tokens.
    """
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
            f"{name} rewrites text or drops spaces, which llama.cpp does not do for this kind of tokenizer.",
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
        tokens={token_id: _as_looked_for(token) for token_id, token in tokens.items()},
        flags={"add_space_prefix": adds_space_prefix},
        special_ids=special_ids or {},
    )


def _as_looked_for(token: Token) -> Token:
    """Return a user-defined piece with plain spaces: the runtime searches for it in text that still has them."""
    if token.type is not TokenType.USER_DEFINED:
        return token
    return Token(token.text.replace("▁", " "), token.type, token.score)


def _scored_by_merges(folder: TokenizerFolder) -> dict[int, Token]:
    """Return a piece that an earlier merge makes scores higher, so that the runtime joins in the same order."""
    model = folder.model
    ranks: dict[str, int] = {}
    for left, right in merge_pairs(model):
        ranks.setdefault(left + right, len(ranks))
    unknown = model.get("unk_token")
    return {
        token_id: Token(text, _type(text, unknown), -float(ranks.get(text, len(ranks))))
        for text, token_id in token_ids(model).items()
    }


def _type(text: str, unknown: object) -> TokenType:
    if text == unknown:
        return TokenType.UNKNOWN
    return TokenType.BYTE if text in _BYTES else TokenType.NORMAL
