from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quantizer.checkpoint.config import Config
from quantizer.gguf.header import encode_entry, encode_header
from quantizer.tokenizers import read_vocabulary, vocabulary_entries
from tests.app.engine.wordpiece_texts import SPECIALS, TEXTS, reference
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

REAL_TOKENS = Path(__file__).with_name("real_tokens.py")


@pytest.mark.parametrize(("is_lowercased", "strips_accents"), [(True, None), (True, False), (False, None)])
def test_a_converted_bert_has_the_tokens_of_its_checkpoint(
    tmp_path: Path, is_lowercased: bool, strips_accents: bool | None
) -> None:
    original = reference(is_lowercased, strips_accents)
    original.save(str(tmp_path / "tokenizer.json"))
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIALS}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    vocabulary = read_vocabulary(tmp_path, Config({"vocab_size": original.get_vocab_size()}))
    model = tmp_path / "vocabulary.gguf"
    architecture = encode_entry("general.architecture", "llama", "str")
    model.write_bytes(encode_header([architecture, *vocabulary_entries(vocabulary)], []))
    done = subprocess.run(
        [sys.executable, str(REAL_TOKENS), str(model)],
        input=json.dumps(TEXTS),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    found = dict(zip(TEXTS, json.loads(done.stdout), strict=True))
    assert {text: tokens for text, tokens in found.items() if tokens != original.encode(text).ids} == {}
