"""The engine's events -> Ollama's response objects. Times are in nanoseconds.

Owns the fields and their order. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from app.engine.protocol.messages import Finished
from app.engine.request import TokenLogprob
from app.service.api.openai.responses import chat_logprobs
from app.service.generation.generation import Answer, Delta
from app.service.tools.tool import ToolCallDelta

__all__ = ["Kind", "OllamaFormatter", "rfc3339_time"]

Kind = Literal["chat", "generate"]

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class OllamaFormatter:
    """The objects that are made of one answer of the model called `model_id`."""

    kind: Kind
    model_id: str

    def text(self, delta: Delta) -> dict[str, Any] | None:
        """Return the frame of what is new, None where that are parts of calls: those are told whole."""
        if not (delta.text or delta.reasoning or delta.logprobs):
            return None
        return {**self._frame(delta.text, delta.reasoning), **_probabilities(delta.logprobs)}

    def calls(self, answer: Answer) -> dict[str, Any] | None:
        """Return the frame of the calls of an answer that has ended, None where it has none."""
        return self._frame(calls=answer.calls) if _told(answer.calls) else None

    def ending(self, answer: Answer) -> dict[str, Any]:
        """Return the last frame: why `answer` ended and what it took."""
        return {**self._frame(), **_end(answer.end)}

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the answer in one piece."""
        said = self._frame(answer.text, answer.reasoning, answer.calls)
        return {**said, **_end(answer.end), **_probabilities(answer.logprobs)}

    def without_words(self, reason: Literal["load", "unload"]) -> dict[str, Any]:
        """Return the answer to a request that only asks for the model to be loaded or let go."""
        return {**self._frame(), "done_reason": reason, "done": True}

    def _frame(self, text: str = "", reasoning: str = "", calls: Sequence[ToolCallDelta] = ()) -> dict[str, Any]:
        thinking = {"thinking": reasoning} if reasoning else {}
        head = {"model": self.model_id, "created_at": rfc3339_time(datetime.now(UTC).timestamp())}
        if self.kind == "generate":
            return {**head, "response": text, **thinking, "done": False}
        tools = {"tool_calls": told} if (told := _told(calls)) else {}
        return {**head, "message": {"role": "assistant", "content": text, **thinking, **tools}, "done": False}


def rfc3339_time(seconds: float) -> str:
    """Return a time since 1970 as Ollama writes times."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _told(calls: Sequence[ToolCallDelta]) -> list[dict[str, Any]]:
    """Return calls with their arguments as objects; one that the limit of tokens has cut short is none."""
    objects = [(call, call.arguments_object()) for call in calls]
    return [{"function": {"name": call.name, "arguments": value}} for call, value in objects if value is not None]


def _probabilities(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {"logprobs": chat_logprobs(entries)} if entries else {}


def _end(finished: Finished) -> dict[str, Any]:
    usage, timings = finished.usage, finished.timings
    return {
        "done": True,
        "done_reason": finished.reason.value,
        "total_duration": int((timings.time_to_first_token_s + timings.decode_s) * _NS),
        "load_duration": 0,
        "prompt_eval_count": usage.n_prompt_tokens,
        "prompt_eval_duration": int(timings.prefill_s * _NS),
        "eval_count": usage.n_output_tokens,
        "eval_duration": int(timings.decode_s * _NS),
    }
