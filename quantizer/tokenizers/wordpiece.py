"""WordPiece, llama.cpp's "bert": words cut into the longest known pieces.

The runtime marks the piece that begins a word with ▁, where BERT marks those that continue one with ##.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from quantizer.checkpoint.errors import CheckpointError
from quantizer.checkpoint.safetensors import as_object
from quantizer.tokenizers.bpe import token_ids
from quantizer.tokenizers.folder import TokenizerFolder, read_text, unsound
from quantizer.tokenizers.pretokenizers import Preparation, preparation
from quantizer.tokenizers.vocabulary import Alphabet, Token, TokenType

_MODEL_NAME = "bert"
_GOES_ON = "##"
_MAX_LIST_BYTES = 64 << 20
_AS_BERT = Preparation(("BertNormalizer",), ("BertPreTokenizer",))
# the names that BERT's tokenizer has when its settings give no other
_ROLE_NAMES = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}


def read_wordpiece(folder: TokenizerFolder) -> Alphabet:
    """Read tokenizer.json.

    Words above the model's limit of characters become unknown there and not in llama.cpp. Raises CheckpointError when
    text is prepared otherwise than BERT does, or pieces are marked otherwise.
    """
    found = preparation(folder.tokenizer)
    if found != _AS_BERT:
        raise found.refusal()
    if folder.model.get("continuing_subword_prefix", _GOES_ON) != _GOES_ON:
        raise CheckpointError("The tokenizer does not mark its pieces as BERT does.", "Look for a GGUF of this model.")
    options = as_object(folder.tokenizer["normalizer"], "the normalizer in tokenizer.json")
    return _alphabet(token_ids(folder.model), options.get("lowercase", True), options.get("strip_accents"))


def read_word_list(folder: TokenizerFolder, path: Path) -> Alphabet:
    """Read vocab.txt, one token a line. Raises CheckpointError when it is not sound or Chinese is not split."""
    settings = folder.settings
    if settings.flag("tokenize_chinese_chars") is False:
        raise CheckpointError("The tokenizer keeps Chinese words whole, llama.cpp does not.", "Look for a GGUF of it.")
    words = read_text(path, _MAX_LIST_BYTES).removesuffix("\n").split("\n")
    ids = {word.removesuffix("\r"): i for i, word in enumerate(words)}
    if len(ids) != len(words):
        raise unsound(path.name)
    names = {role: settings.text(f"{role}_token") or name for role, name in _ROLE_NAMES.items()}
    special_ids = {role: ids[name] for role, name in names.items() if name in ids}
    alphabet = _alphabet(ids, settings.flag("do_lower_case") is not False, settings.flag("strip_accents"))
    controls = {i: Token(words[i], TokenType.CONTROL) for i in special_ids.values()}
    return replace(alphabet, tokens={**alphabet.tokens, **controls}, special_ids=special_ids)


def _alphabet(ids: Mapping[str, int], is_lowercased: object, strips_accents: object) -> Alphabet:
    lowercase = bool(is_lowercased)
    return Alphabet(
        model=_MODEL_NAME,
        tokens={token_id: Token(_marked(text)) for text, token_id in ids.items()},
        flags={
            "normalizer.lowercase": lowercase,
            "normalizer.strip_accents": lowercase if strips_accents is None else bool(strips_accents),
        },
    )


def _marked(text: str) -> str:
    return text.removeprefix(_GOES_ON) if text.startswith(_GOES_ON) else f"▁{text}"
