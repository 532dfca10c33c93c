"""BPE in tokenizer.json: its vocabulary and merges, checked; and byte-level BPE, llama.cpp's "gpt2"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantizer.errors import CheckpointError
from quantizer.tokenizers.folder import TokenizerFolder, as_object, unsound
from quantizer.tokenizers.pretokenizers import pretokenizer_name
from quantizer.tokenizers.steps import preparation
from quantizer.tokenizers.vocabulary import MAX_TOKENS, Alphabet, Token

__all__ = ["merge_pairs", "read_byte_level", "token_ids"]


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
