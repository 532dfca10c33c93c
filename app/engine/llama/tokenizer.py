"""Tokenization with a native vocabulary.

Owns the maximum size of text for the native tokenizer. Independent of contexts.
"""

from __future__ import annotations

from app.engine.llama.native import lib
from quantizer.errors import EngineError, RequestError

__all__ = ["tokenize"]

MAX_PROMPT_BYTES = 16 << 20


def tokenize(vocab: int, text: str, add_special: bool, parse_special: bool) -> list[int]:
    """Return the tokens of `text`. Raises RequestError for text that is not Unicode or above 16 MiB."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("The text contains a lone surrogate.", "Send valid Unicode.") from error
    if len(data) > MAX_PROMPT_BYTES:
        raise RequestError(f"The text has {len(data)} bytes.", f"Send at most {MAX_PROMPT_BYTES}.")
    size = len(data) + 8  # each token has at least a byte, except special ones at both ends
    tokens = (lib.llama_token * size)()
    n_tokens = lib.llama_tokenize(vocab, data, len(data), tokens, size, add_special, parse_special)
    if n_tokens < 0:
        raise EngineError("The text could not be tokenized.", "Send it in smaller parts.")
    return list(tokens[:n_tokens])
