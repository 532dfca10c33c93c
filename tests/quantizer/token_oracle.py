"""Asks llama.cpp how it cuts texts; run as a child process, for llama_cpp must stay out of the tests'.

Usage: python token_oracle.py MODEL.gguf < JSON {"texts": [...], "is_framed": bool}; prints JSON [[id, ...], ...].
"""

from __future__ import annotations

import json
import sys

from llama_cpp import llama_cpp

from app.engine.llama.native import tokenize


def main() -> None:
    request = json.load(sys.stdin)
    silence = llama_cpp.llama_log_callback(lambda _level, _text, _user: None)  # must live as long as llama.cpp may call
    llama_cpp.llama_log_set(silence, None)
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), params)
    if not model:
        sys.exit(f"llama.cpp refuses {sys.argv[1]}")
    vocab = llama_cpp.llama_model_get_vocab(model)
    # special tokens are put around a text and looked for in it, or neither
    is_framed = request["is_framed"]
    answers = [tokenize(vocab, text, is_framed, is_framed) for text in request["texts"]]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
