"""Small tokenizers of every kind, written as Hugging Face and SentencePiece write them, with nothing but the format."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quantizer.checkpoint.config import Config
from quantizer.tokenizers import TokenizerVocabulary, read_vocabulary
from tests.quantizer.checkpoints import tokenizer, tokenizer_config

__all__ = [
    "BYTES",
    "Edit",
    "piece_model",
    "roberta",
    "sentence_bpe",
    "unigram",
    "vocabulary_of",
    "word_pieces",
    "write",
    "xlm_roberta",
]

Edit = Callable[[dict[str, Any], dict[str, Any]], object]
# SentencePiece's own compilation of two rules: a tab and a line feed become a space.
_CHARSMAP = (
    "eNol01XQlgUQBtD3gvzpEqSRVkCluxTplBaRlO7uBgEBpbs7FZDuDunu7u6O88HOnNmZZ292ZmeDcEEQJA+CyJGDICx8EKqeoRaK"
    "IxIBoyASUQgjGlGJQXRiEZM4xCYecYnPF3xJAhKRkCQkJhlJSfF5hSAlX5GaVKQlDelJxzd8TUYy8C2Z+J7vyEJmspGVHGQnFznJ"
    "Q27ykZcC5KcQBfmBwhThR4ryE8UpRklKUJpSlKUM5SnHz1SgEhWpQmWqUZVfqM6v1OA3alKbWtSlDvWpRwN+pxENaUJjmtGUFjSn"
    "FS1pQ2va0ZYOtKcTHelCZ7rRlR50p1fo6PShN/3oywD6M5A/GMwghvAnwxjK3/zFCIYzipGMYTTjGMsExjOJiUxhMtOYygymM4uZ"
    "zGE285jLAuaziIUsYTH/8g/LWMp/LGclK1jNKtayhvWsYyMb2MwmtrKF7WxjJzvYzS72sod9/M8B9nOIgxzhMMc4ygmOc4qTnOE0"
    "5zjLBc5ziYtc4TLXuMoNrnOLm9zhNve4ywPu84iHPOExz3jKC57zipe84TXveMsH3n/6vY+uxIBg"
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_IDS = {"<s>": 1, "</s>": 1, "[CLS]": 2, "[SEP]": 3}
_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

_ROBERTA_NAMES = _NAMES | {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}


def write(folder: Path, parsed: dict[str, Any], settings: dict[str, Any], *edits: Edit) -> Path:
    """Write tokenizer.json and tokenizer_config.json into `folder`, edited."""
    for edit in edits:
        edit(parsed, settings)
    (folder / "tokenizer.json").write_text(json.dumps(parsed))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def vocabulary_of(folder: Path, *edits: Edit, config: dict[str, Any] | None = None) -> TokenizerVocabulary:
    """The byte-level tokenizer of the tiny Llama, edited, written and read."""
    write(folder, tokenizer(), tokenizer_config(), *edits)
    return read_vocabulary(folder, Config(config or {"vocab_size": 272, "eos_token_id": [258, 260]}))


def sentence_bpe() -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json of a BPE with byte fallback as Llama 2 has it, and its settings."""
    words = ["▁", "h", "e", "l", "o", "he", "ll", "▁he", "llo", "▁hello", "▁▁"]
    merges = [["h", "e"], ["l", "l"], ["▁", "he"], ["ll", "o"], ["▁he", "llo"], ["▁", "▁"]]
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *BYTES, *words])}
    parsed = {
        "added_tokens": [_added(i, name) for i, name in enumerate(("<unk>", "<s>", "</s>"))],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": _template("<s>", "A"),
        "model": {"type": "BPE", "byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
        | {"vocab": vocab, "merges": merges},
    }
    return parsed, dict(_NAMES)


def unigram() -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json of a unigram model as T5 has it, and its settings."""
    charsmap = zlib.decompress(base64.b64decode(_CHARSMAP))
    pieces = [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["▁", -3.0], ["▁he", -2.5], ["llo", -2.0], ["l", -4.0]]
    pieces += [["o", -4.5], ["▁hello", -7.0], ["h", -5.0], ["e", -5.5]]
    parsed = {
        "added_tokens": [_added(i, name) for i, name in enumerate(("<pad>", "</s>", "<unk>"))],
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
            ],
        },
        "post_processor": _template("A", "</s>"),
        "model": {"type": "Unigram", "unk_id": 2, "vocab": pieces, "byte_fallback": False},
    }
    return parsed, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def xlm_roberta() -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json of a unigram model as XLM-R has it, with the ids of fairseq, and its settings."""
    parsed, _ = unigram()
    specials = ("<s>", "<pad>", "</s>", "<unk>")
    pieces = [[name, 0.0] for name in specials] + parsed["model"]["vocab"][3:] + [["<mask>", 0.0]]
    pair = ("<s>", "A", "</s>", "</s>", "B", "</s>")
    added = [_added(i, name) for i, name in enumerate(specials)] + [_added(len(pieces) - 1, "<mask>")]
    parsed |= {
        "added_tokens": added,
        "post_processor": _template("<s>", "A", "</s>", pair=pair, ids={"<s>": 0, "</s>": 2}),
        "model": parsed["model"] | {"unk_id": 3, "vocab": pieces},
    }
    return parsed, dict(_ROBERTA_NAMES)


def roberta() -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json of a byte-level BPE as RoBERTa has it, and its settings."""
    parsed = tokenizer()
    specials = ("<s>", "<pad>", "</s>", "<unk>")
    vocab = {name: i for i, name in enumerate([*specials, *parsed["model"]["vocab"], "<mask>"])}
    parsed |= {
        "added_tokens": [_added(vocab[name], name) for name in (*specials, "<mask>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}
        | {"trim_offsets": True, "add_prefix_space": False},
        "model": parsed["model"] | {"vocab": vocab, "ignore_merges": False},
    }
    return parsed, dict(_ROBERTA_NAMES)


def word_pieces() -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json of a WordPiece model as BERT has it, and its settings."""
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = ["hello", "he", "##llo", "##l", "##o", "world", ",", "!", "caf", "##e", "h", "中"]
    parsed = {
        "added_tokens": [_added(i, name) for i, name in enumerate(specials)],
        "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None}
        | {"clean_text": True, "handle_chinese_chars": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _template("[CLS]", "A", "[SEP]", pair=("[CLS]", "A", "[SEP]", "B", "[SEP]")),
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
        | {"max_input_chars_per_word": 100, "vocab": {word: i for i, word in enumerate([*specials, *words])}},
    }
    return parsed, {f"{name.strip('[]').lower()}_token": name for name in specials}


def _added(token_id: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": content} | flags


def _template(*names: str, pair: Sequence[str] = (), ids: Mapping[str, int] = _IDS) -> dict[str, Any]:
    parts = [_part(name) for name in names]
    specials = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in names if name != "A"}
    both = [_part(name) for name in pair] or [*parts, _part("B")]
    return {"type": "TemplateProcessing", "single": parts, "pair": both, "special_tokens": specials}


def _part(name: str) -> dict[str, Any]:
    return {"Sequence" if name in ("A", "B") else "SpecialToken": {"id": name, "type_id": 0}}


def piece_model(
    pieces: Sequence[tuple[str, float, int]], trainer: Iterable[tuple[int, int]], normalizer: Iterable[tuple[int, int]]
) -> bytes:
    """A tokenizer.model: pieces (text, score, type) and (field, number) pairs of the two specifications."""
    encoded = [
        _field(1, _field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + _number(3, kind))
        for text, score, kind in pieces
    ]
    specs = [
        _field(number, b"".join(_number(*pair) for pair in pairs)) for number, pairs in ((2, trainer), (3, normalizer))
    ]
    return b"".join(encoded + specs)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
