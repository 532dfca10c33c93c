"""The engine's events -> OpenAI's response objects, with llama.cpp's `timings` beside `usage`.

Owns the fields and their order. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from app.engine.frames import Finished
from app.engine.request import FinishReason

__all__ = ["AnswerShape", "Kind", "timings_of", "usage_of"]

Kind = Literal["chat", "text"]

_FINISH_REASONS = {FinishReason.LENGTH: "length"}
_ID_PREFIX: dict[Kind, str] = {"chat": "chatcmpl-", "text": "cmpl-"}
_OBJECT: dict[Kind, str] = {"chat": "chat.completion", "text": "text_completion"}
_CHUNK_OBJECT: dict[Kind, str] = {"chat": "chat.completion.chunk", "text": "text_completion"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShape:
    """One answer's identity, and the objects that are made of it."""

    kind: Kind
    request_id: str
    model_id: str
    created_s: int = field(default_factory=lambda: int(time.time()))

    def opening(self) -> dict[str, Any] | None:
        """Return the chunk before the first text, where the kind has one."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None) if self.kind == "chat" else None

    def text(self, text: str) -> dict[str, Any]:
        """Return the chunk of new text."""
        return self._chunk({"delta": {"content": text}} if self.kind == "chat" else {"text": text}, None)

    def ending(self, finished: Finished) -> dict[str, Any]:
        """Return the chunk that says why the answer ended and what it took."""
        part: dict[str, Any] = {"delta": {}} if self.kind == "chat" else {"text": ""}
        return {**self._chunk(part, _reason(finished)), "timings": timings_of(finished)}

    def usage(self, finished: Finished) -> dict[str, Any]:
        """Return the chunk after the ending, for clients that ask for it."""
        return {**self._head(_CHUNK_OBJECT[self.kind]), "choices": [], "usage": usage_of(finished)}

    def whole(self, text: str, finished: Finished) -> dict[str, Any]:
        """Return the answer in one piece."""
        part: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text}} if self.kind == "chat" else {"text": text}
        )
        return {
            **self._head(_OBJECT[self.kind]),
            "choices": [{"index": 0, **part, "logprobs": None, "finish_reason": _reason(finished)}],
            "usage": usage_of(finished),
            "timings": timings_of(finished),
        }

    def _head(self, name: str) -> dict[str, Any]:
        return {
            "id": _ID_PREFIX[self.kind] + self.request_id,
            "object": name,
            "created": self.created_s,
            "model": self.model_id,
        }

    def _chunk(self, part: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **part, "finish_reason": finish_reason}
        return {**self._head(_CHUNK_OBJECT[self.kind]), "choices": [choice]}


def usage_of(finished: Finished) -> dict[str, Any]:
    """Return OpenAI's `usage`."""
    usage = finished.usage
    return {
        "prompt_tokens": usage.n_prompt_tokens,
        "completion_tokens": usage.n_output_tokens,
        "total_tokens": usage.n_prompt_tokens + usage.n_output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.n_cached_tokens},
    }


def timings_of(finished: Finished) -> dict[str, Any]:
    """Return `timings` with llama-server's names. The first token is prefill's, so decode's rate is over the others."""
    usage, timings = finished.usage, finished.timings
    n_computed = usage.n_prompt_tokens - usage.n_cached_tokens
    return {
        "cache_n": usage.n_cached_tokens,
        "prompt_n": n_computed,
        "prompt_ms": timings.prefill_s * 1000,
        "prompt_per_second": _rate(n_computed, timings.prefill_s),
        "predicted_n": usage.n_output_tokens,
        "predicted_ms": timings.decode_s * 1000,
        "predicted_per_second": _rate(usage.n_output_tokens - 1, timings.decode_s),
        "draft_n": usage.n_drafted_tokens,
        "draft_n_accepted": usage.n_accepted_tokens,
        "queue_ms": timings.queue_s * 1000,
        "time_to_first_token_ms": timings.time_to_first_token_s * 1000,
    }


def _rate(n_tokens: int, seconds: float) -> float:
    return n_tokens / seconds if seconds > 0 and n_tokens > 0 else 0.0


def _reason(finished: Finished) -> str:
    return _FINISH_REASONS.get(finished.reason, "stop")
