"""The engine's token probabilities -> OpenAI's `logprobs`, in the form of each of its two routes; others took one.

Owns these fields. Knows nothing of how they were computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from app.engine.request import TokenLogprob
from app.service.api import openai_objects as objects

__all__ = ["LOGPROB_SHAPES", "Logprobs", "chat_entries"]


def chat_entries(entries: Sequence[TokenLogprob]) -> list[objects.RankedToken]:
    """Return tokens with their rivals, as chat has them."""
    return [_chat_entry(entry) for entry in entries]


def _chat(entries: Sequence[TokenLogprob]) -> objects.ChatLogprobs:
    return {"content": chat_entries(entries), "refusal": None}


def _chat_entry(entry: TokenLogprob) -> objects.RankedToken:
    assert entry.logprob is not None, "only the first token of a prompt has none, and only texts tell prompts"
    rivals = [_token(piece, logprob) for piece, logprob in entry.top]
    return {**_token(entry.piece, entry.logprob), "top_logprobs": rivals}


def _token(piece: bytes, logprob: float) -> objects.TokenLogprob:
    """Return one token; `bytes` says what `token` cannot where a character is split over several."""
    return {"token": _text(piece), "logprob": logprob, "bytes": list(piece)}


def _completion(entries: Sequence[TokenLogprob]) -> objects.TextLogprobs:
    return {
        "tokens": [_text(entry.piece) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [None if entry.logprob is None else _rivals(entry) for entry in entries],
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


Logprobs: TypeAlias = objects.ChatLogprobs | objects.TextLogprobs

LOGPROB_SHAPES: Mapping[Literal["chat", "text"], Callable[[Sequence[TokenLogprob]], Logprobs]] = {
    "chat": _chat,
    "text": _completion,
}
