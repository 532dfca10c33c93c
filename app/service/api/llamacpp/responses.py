"""The engine's answers as llama-server's objects of /completion and /infill.

Owns the fields and their order. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from annotated_types import MinLen
from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.engine.request import FinishReason, Request
from app.protocol.codec import encode
from app.protocol.sampling import SamplingOptions
from app.service.api.fields import WithWarnings
from app.service.api.openai.usage import ChatTokenLogprob, Timings, chat_logprobs, timings_of
from app.service.generation.generation import Answer, Delta

__all__ = ["Completion", "CompletionChunk", "LlamaCppFormatter", "SelectedFields", "SeveralCompletions"]

_NO_LIMIT = -1


StopType: TypeAlias = Literal["eos", "limit", "word"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings(SamplingOptions):
    """The options of a request: how tokens were sampled (but for biases), and where the answer was to end."""

    n_predict: int
    stop: tuple[str, ...]


class CompletionChunk(TypedDict):
    """The new part of an answer."""

    index: NonNegativeInt
    content: str
    tokens: list[None]
    stop: Literal[False]
    tokens_predicted: NonNegativeInt
    completion_probabilities: NotRequired[list[ChatTokenLogprob]]


class Completion(WithWarnings):
    """An answer in one object; also the last event of a stream, without its text."""

    index: NonNegativeInt
    content: str
    tokens: list[None]
    stop: Literal[True]
    model: str
    tokens_predicted: NonNegativeInt
    tokens_evaluated: NonNegativeInt
    tokens_cached: NonNegativeInt
    generation_settings: GenerationSettings
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: StopType
    stopping_word: str
    timings: Timings
    completion_probabilities: NotRequired[list[ChatTokenLogprob]]


SelectedFields: TypeAlias = dict[str, Any]  # the fields of a Completion that `response_fields` names


SeveralCompletions: TypeAlias = Annotated[list[Completion | SelectedFields], MinLen(2)]


@dataclass(frozen=True, slots=True)
class LlamaCppFormatter:
    """The objects made of the answers to `request` by the model `model_id`."""

    request: Request
    model_id: str

    def chunk(self, delta: Delta) -> CompletionChunk:
        """Return the event of new text."""
        chunk: CompletionChunk = {
            "index": delta.index,
            "content": delta.text,
            "tokens": [],
            "stop": False,
            "tokens_predicted": delta.n_tokens,
        }
        if self.request.n_logprobs is not None:
            chunk["completion_probabilities"] = chat_logprobs(delta.logprobs)
        return chunk

    def final_chunk(self, answer: Answer, warnings: WithWarnings) -> Completion:
        """Return the last event of an answer."""
        return self._completion(answer, "", warnings)

    def whole(
        self, answer: Answer, warnings: WithWarnings, selected: Sequence[str] | None
    ) -> Completion | SelectedFields:
        """Return the answer in one object, of which only the fields `selected`, if any; "a/b" is the field b of a."""
        completion = self._completion(answer, answer.text, {} if selected else warnings)
        if self.request.n_logprobs is not None:
            completion["completion_probabilities"] = chat_logprobs(answer.logprobs)
        if selected is None:
            return completion
        data = encode(completion)
        values = {path: _value_at(data, path) for path in selected}
        return {path: value for path, value in values.items() if value is not None}

    def _completion(self, answer: Answer, text: str, warnings: WithWarnings) -> Completion:
        end = answer.end
        completion: Completion = {
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
        if "warnings" in warnings:
            completion["warnings"] = warnings["warnings"]
        return completion

    def _settings(self) -> GenerationSettings:
        options = {item.name: getattr(self.request.sampling, item.name) for item in fields(SamplingOptions)}
        limit = self.request.max_tokens
        return GenerationSettings(**options, n_predict=_NO_LIMIT if limit is None else limit, stop=self.request.stop)


def _stop_type(answer: Answer) -> StopType:
    if answer.end.reason is FinishReason.LENGTH:
        return "limit"
    return "word" if answer.end.stopped_by else "eos"


def _value_at(data: Any, path: str) -> Any:
    """Return the value at `path` in `data`, None where there is none."""
    for name in path.split("/"):
        data = data.get(name) if isinstance(data, dict) else None
    return data
