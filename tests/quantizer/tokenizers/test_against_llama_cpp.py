"""What a GGUF of ours makes llama.cpp do with text, against the tokenizer that it was made from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from quantizer.checkpoint.config import Config
from quantizer.gguf.header import encode_entry, encode_header
from quantizer.tokenizers import read_vocabulary, vocabulary_entries
from tests.quantizer.checkpoints import tokenizer, tokenizer_config
from tests.quantizer.tokenizer_files import sentence_bpe, unigram, word_pieces, write

pytestmark = pytest.mark.slow

ORACLE = Path(__file__).parents[1] / "token_oracle.py"
TEXTS = [
    *(
        "",
        "hello",
        " hello  world ",
        "the thé",
        "hello\n\n  hello\t",
        "123 4567",
        "I'm, 'RE",
        "日本語 中文",
        "🙂👨‍👩‍👧",
        "Café!",
    ),
    *("שלום", "<|im_start|>the<|im_end|>", "</s>hello", "a\u0001b\u200bc", "x" * 40, "[SEP] hello [MASK]"),
]
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "byte-level BPE": (tokenizer(), tokenizer_config()),
    "SentencePiece BPE": sentence_bpe(),
    "unigram": unigram(),
    "WordPiece": word_pieces(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_text_becomes_the_same_tokens(kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path, *KINDS[kind])
    vocabulary = read_vocabulary(folder, Config({"vocab_size": 280}))
    model = tmp_path / "vocabulary.gguf"
    architecture = encode_entry("general.architecture", "llama", "str")
    model.write_bytes(encode_header([architecture, *vocabulary_entries(vocabulary)], []))
    original = Tokenizer.from_file(str(folder / "tokenizer.json"))
    request = json.dumps({"texts": TEXTS, "is_framed": True})
    done = subprocess.run(
        [sys.executable, str(ORACLE), str(model)], input=request, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [original.encode(text).ids for text in TEXTS]
