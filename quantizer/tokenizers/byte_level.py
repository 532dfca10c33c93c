"""Byte-level BPE, llama.cpp's "gpt2": every byte is a letter, and a list of merges makes the rest."""

from __future__ import annotations

from quantizer.tokenizers.folder import TokenizerFolder
from quantizer.tokenizers.merges import merge_pairs, token_ids
from quantizer.tokenizers.pretokenizers import recognise
from quantizer.tokenizers.steps import preparation
from quantizer.tokenizers.vocabulary import Alphabet, Token

__all__ = ["read_byte_level"]


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
        pre_tokenizer=recognise(found.cuts, bool(model.get("ignore_merges", False))),
        merges=tuple(" ".join(part.replace(" ", "Ġ") for part in pair) for pair in merge_pairs(model)),
    )
