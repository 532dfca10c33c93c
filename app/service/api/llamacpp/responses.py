"""The engine's events -> llama-server's answers to /completion and /infill.

Owns the fields and their order. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.engine.request import FinishReason, Request, TokenLogprob
from app.service.api.openai.responses import chat_logprobs, timings_of
from app.service.generation.generation import Answer, Delta

__all__ = ["LlamaCppFormatter"]

_ENDLESS = -1


@dataclass(frozen=True, slots=True)
class LlamaCppFormatter:
    """The objects that are made of the answers to `request` by the model called `model_id`.

    Of a whole answer only `fields` are told, all without them; "a/b" is the field b of a, told under that name.
    """

    request: Request
    model_id: str
    fields: Sequence[str] | None = None

    def text(self, delta: Delta) -> dict[str, Any]:
        """Return the event of what is new in an answer."""
        return {
            "index": delta.index,
            "content": delta.text,
            "tokens": [],
            "stop": False,
            "tokens_predicted": delta.n_tokens,
            **self._probabilities(delta.logprobs),
        }

    def ending(self, answer: Answer) -> dict[str, Any]:
        """Return the last event of an answer."""
        return self._end(answer, "")

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return an answer in one piece."""
        told = {**self._end(answer, answer.text), **self._probabilities(answer.logprobs)}
        if self.fields is None:
            return told
        found = {field: _at(told, field) for field in self.fields}
        return {field: value for field, value in found.items() if value is not None}

    def _end(self, answer: Answer, text: str) -> dict[str, Any]:
        end = answer.end
        return {
            "index": answer.index,
            "content": text,
            "tokens": [],
            "stop": True,
            "model": self.model_id,
            "tokens_predicted": end.usage.n_output_tokens,
            "tokens_evaluated": end.usage.n_prompt_tokens,
            "tokens_cached": end.usage.n_cached_tokens,
            "generation_settings": self._settings(),
            "prompt": self.request.prompt if isinstance(self.request.prompt, str) else "",
            "has_new_line": "\n" in answer.text,
            "truncated": end.usage.n_dropped_tokens > 0,
            "stop_type": _stop_type(answer),
            "stopping_word": end.stopped_by,
            "timings": timings_of(end),
        }

    def _settings(self) -> dict[str, Any]:
        """Return how tokens were chosen; biases are left out, for one that bans a token is no JSON."""
        sampling = {name: value for name, value in asdict(self.request.sampling).items() if name != "logit_bias"}
        limit = self.request.max_tokens
        return {**sampling, "n_predict": _ENDLESS if limit is None else limit, "stop": list(self.request.stop)}

    def _probabilities(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"completion_probabilities": chat_logprobs(entries)} if self.request.n_logprobs is not None else {}


def _stop_type(answer: Answer) -> str:
    if answer.end.reason is FinishReason.LENGTH:
        return "limit"
    return "word" if answer.end.stopped_by else "eos"


def _at(told: dict[str, Any], field: str) -> Any:
    """Return the value at the path `field`, None where there is none."""
    value: Any = told
    for name in field.split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    return value
