"""The vocabulary of a checkpoint in llama.cpp's form: `read_vocabulary(folder, config)`.

`alphabets` reads a tokenizer by its kind; added tokens, special ids, the tokens around a prompt and chat templates are
the same for all kinds.
"""

from __future__ import annotations

from pathlib import Path

from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.tokenizers.alphabets import (
    alphabet_of_pieces,
    read_byte_level,
    read_sentence_bpe,
    read_unigram,
    read_word_list,
    read_wordpiece,
    unigram_alphabet,
)
from quantizer.tokenizers.sentencepiece_model import Algorithm, read_piece_model
from quantizer.tokenizers.special_tokens import read_added_tokens, read_additions, read_frame, read_special_ids
from quantizer.tokenizers.vocabulary import (
    Alphabet,
    Token,
    TokenizerFolder,
    TokenizerVocabulary,
    TokenType,
    read_chat_templates,
    token_list,
    vocabulary_entries,
)

__all__ = ["Token", "TokenType", "TokenizerVocabulary", "read_vocabulary", "vocabulary_entries"]

_READERS = {"BPE": read_byte_level, "Unigram": read_unigram, "WordPiece": read_wordpiece}


def read_vocabulary(folder: Path, config: Config) -> TokenizerVocabulary:
    """Read the tokenizer in `folder`; `config` is the model's, whose vocab_size is the number of tokens. Raises
    CheckpointError for kinds that llama.cpp has not, and for anything inconsistent."""
    files = TokenizerFolder.read(folder)
    alphabet = _read_alphabet(files)
    added = [(token.id, token.text, token.type) for token in read_added_tokens(files)]
    tokens = token_list(alphabet.tokens, added, config.integer("vocab_size"))
    ids = {token.text: i for i, token in enumerate(tokens) if token.type is not TokenType.UNUSED}
    frame = read_frame(files.tokenizer.get("post_processor"))
    special_ids = read_special_ids(files, config, alphabet.special_ids, frame, ids)
    return TokenizerVocabulary(
        alphabet=alphabet,
        tokens=tuple(tokens),
        special_ids=special_ids,
        additions=read_additions(files, frame, special_ids, ids),
        chat_templates=read_chat_templates(files),
        n_token_types=config.optional_integer("type_vocab_size"),
    )


def _read_alphabet(files: TokenizerFolder) -> Alphabet:
    """Read the alphabet from tokenizer.json; without one, from the files of older tokenizers."""
    if files.tokenizer:
        kind = str(files.model.get("type", "BPE"))
        if kind not in _READERS:
            raise CheckpointError(
                f"llama.cpp does not support tokenizers of the kind {kind[:32]}.", "Look for a GGUF of this model."
            )
        falls_back_to_bytes = kind == "BPE" and files.model.get("byte_fallback")
        return (read_sentence_bpe if falls_back_to_bytes else _READERS[kind])(files)
    pieces, words = files.file("tokenizer.model", "spiece.model"), files.file("vocab.txt")
    if pieces is not None:
        model = read_piece_model(pieces)
        if model.algorithm is Algorithm.BPE:
            return alphabet_of_pieces(model, pieces.name)
        if model.algorithm is Algorithm.UNIGRAM:
            return unigram_alphabet(model, pieces.name)
        raise CheckpointError(
            f"{pieces.name} splits text into {model.algorithm.name.lower()}s, which llama.cpp does not support.",
            "Look for a GGUF.",
        )
    if words is not None:
        return read_word_list(files, words)
    raise CheckpointError(
        f"There is no tokenizer.json, tokenizer.model or vocab.txt in {files.path}.", "Download the whole checkpoint."
    )
