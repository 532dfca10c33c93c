"""Loads the vocabularies of GGUFs with llama.cpp, and uses them; a child process, since llama.cpp may abort.

Reads one path a line and answers each with a line: `loaded`, or `refused`. Of a loaded one every token is turned into
text, and some texts, hostile ones too, into tokens.
"""

from __future__ import annotations

import ctypes
import sys

from app.engine.llama.native import lib, native_log, tokenize

_TEXTS = ("", " ", "Hello, wörld!\n\n  \t", "\0", "<s></s><|im_start|>", "▁▁中文\U0001f600", "ÿ" * 50, "a" * 3_000)
_MOST_TOKENS = 400_000


def answer(path: str) -> str:
    """Return `loaded` or `refused` for the vocabulary at `path`."""
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(path.encode(), params)
    if not model:
        return "refused"
    vocab = lib.llama_model_get_vocab(model)
    piece = (ctypes.c_char * 256)()
    for token in range(min(lib.llama_vocab_n_tokens(vocab), _MOST_TOKENS)):
        lib.llama_token_to_piece(vocab, token, piece, len(piece), 0, True)
    for text in _TEXTS:
        for is_framed in (False, True):
            tokenize(vocab, text, is_framed, is_framed)
    lib.llama_model_free(model)
    return "loaded"


def main() -> None:
    native_log()
    for line in sys.stdin:
        print(answer(line.rstrip("\n")), flush=True)


if __name__ == "__main__":
    main()
