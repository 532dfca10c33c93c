"""The engine's token probabilities -> OpenAI's `logprobs`, in the form of each of its two routes; others took one.

Owns these fields. Knows nothing of how they were computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from app.engine.request import TokenLogprob

__all__ = ["LOGPROB_SHAPES", "chat_entries"]


def chat_entries(entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return tokens with their rivals, as chat has them."""
    return [_chat_entry(entry) for entry in entries]


def _chat(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {"content": chat_entries(entries), "refusal": None}


def _chat_entry(entry: TokenLogprob) -> dict[str, Any]:
    rivals = [_token(piece, logprob) for piece, logprob in entry.top]
    return {**_token(entry.piece, entry.logprob), "top_logprobs": rivals}


def _token(piece: bytes, logprob: float) -> dict[str, Any]:
    """Return one token; `bytes` says what `token` cannot where a character is split over several."""
    return {"token": _text(piece), "logprob": logprob, "bytes": list(piece)}


def _completion(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {
        "tokens": [_text(entry.piece) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_rivals(entry) for entry in entries],
        "text_offset": [entry.offset for entry in entries],
    }


def _rivals(entry: TokenLogprob) -> dict[str, float]:
    """Return rivals by text, best first; of those that read the same, for they are parts of characters, the best."""
    rivals: dict[str, float] = {}
    for piece, logprob in entry.top:
        rivals.setdefault(_text(piece), logprob)
    return rivals


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


LOGPROB_SHAPES: Mapping[Literal["chat", "text"], Callable[[Sequence[TokenLogprob]], dict[str, Any]]] = {
    "chat": _chat,
    "text": _completion,
}
