"""Tokenizes with a real vocabulary; run as a child, for native code may end its process.

Usage: python real_tokens.py FILE < JSON [text, …]; prints JSON of the tokens of each, with those around a text.
"""

from __future__ import annotations

import json
import sys

from app.engine.llama.native import lib
from app.engine.llama.tokenizer import LlamaTokenizer

if __name__ == "__main__":
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(sys.argv[1].encode(), params)
    tokenizer = LlamaTokenizer(model)
    print(json.dumps([tokenizer(text, add_special=True, parse_special=True) for text in json.load(sys.stdin)]))
    lib.llama_model_free(model)
