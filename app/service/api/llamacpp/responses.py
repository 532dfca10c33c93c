"""The engine's answers as llama-server's objects of /completion and /infill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from annotated_types import MinLen
from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.engine.request import FinishReason, Request, TokenLogprob
from app.protocol.chat import PromptProgress
from app.protocol.codec import encode
from app.protocol.sampling import SamplingOptions
from app.service.api.fields import Byte, WithWarnings
from app.service.api.openai.responses import PromptProgressObject, progress_object
from app.service.api.openai.usage import Timings, timings_of
from app.service.api.unread_fields import SAMPLERS
from app.service.generation.generation import Answer, Delta

_NO_LIMIT = -1


StopType: TypeAlias = Literal["eos", "limit", "word"]


class BiasObject(TypedDict):
    """A bias of a token, by id, or of the tokens of a text; null bans them, as JSON has no infinity."""

    token: int | str
    bias: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings(SamplingOptions):
    """The options of a request: how tokens were sampled, and where the answer was to end."""

    n_predict: int
    stop: tuple[str, ...]
    max_tokens: int
    n_keep: int
    n_probs: int
    ignore_eos: bool
    repeat_last_n: int  # llama-server's name of `penalty_last_n`
    samplers: tuple[str, ...]  # in the order of this engine
    post_sampling_probs: bool
    logit_bias: list[BiasObject]


class RivalProbability(TypedDict):
    """A token with its id (source: `completion_token_output` of llama-server)."""

    id: NonNegativeInt
    token: str
    bytes: list[Byte]
    logprob: float


class TokenProbability(RivalProbability):
    """A token with the most likely ones at its place, best first."""

    top_logprobs: list[RivalProbability]


class SampledRival(TypedDict):
    """A token with its chance after the samplers."""

    id: NonNegativeInt
    token: str
    bytes: list[Byte]
    prob: float


class SampledProbability(SampledRival):
    """A token with the most likely ones that the samplers left at its place, best first."""

    top_probs: list[SampledRival]


Probabilities: TypeAlias = list[TokenProbability] | list[SampledProbability]


class CompletionChunk(TypedDict):
    index: NonNegativeInt
    content: str
    tokens: list[int]
    stop: Literal[False]
    tokens_predicted: NonNegativeInt
    completion_probabilities: NotRequired[Probabilities]
    prompt_progress: NotRequired[PromptProgressObject]


class Completion(WithWarnings):
    """An answer in one object; also the last event of a stream, without its text."""

    index: NonNegativeInt
    content: str
    tokens: list[int]
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
    completion_probabilities: NotRequired[Probabilities]


SelectedFields: TypeAlias = dict[str, Any]  # the fields of a Completion that `response_fields` names


SeveralCompletions: TypeAlias = Annotated[list[Completion | SelectedFields], MinLen(2)]


@dataclass(frozen=True, slots=True)
class LlamaCppFormatter:
    """The objects made of the answers to `requests`; only the fields `selected` ("a/b" is b of a), all if none are."""

    requests: Sequence[Request]
    model_id: str
    selected: Sequence[str] | None = None

    @property
    def shows_prompt(self) -> bool:
        return not self.selected or "prompt" in self.selected

    def chunk(self, delta: Delta) -> CompletionChunk:
        chunk: CompletionChunk = {
            "index": delta.index,
            "content": delta.text,
            "tokens": list(delta.tokens),
            "stop": False,
            "tokens_predicted": delta.n_tokens,
        }
        request = self.requests[delta.index]
        if request.n_logprobs is not None:
            chunk["completion_probabilities"] = probabilities_of(request, delta.logprobs)
        return chunk

    def progress_chunk(self, progress: PromptProgress) -> CompletionChunk:
        chunk: CompletionChunk = {"index": 0, "content": "", "tokens": [], "stop": False, "tokens_predicted": 0}
        chunk["prompt_progress"] = progress_object(progress)
        return chunk

    def final_chunk(self, answer: Answer, prompt: str, warnings: WithWarnings) -> Completion | SelectedFields:
        return self._selected(self._completion(answer, prompt, warnings))

    def whole(self, answer: Answer, prompt: str, warnings: WithWarnings) -> Completion | SelectedFields:
        completion = self._completion(answer, prompt, {} if self.selected else warnings)
        completion["content"] = answer.text
        completion["tokens"] = answer.tokens
        request = self.requests[answer.index]
        if request.n_logprobs is not None:
            completion["completion_probabilities"] = probabilities_of(request, answer.logprobs)
        return self._selected(completion)

    def _selected(self, completion: Completion) -> Completion | SelectedFields:
        if not self.selected:
            return completion
        data = encode(completion)
        values = {path: _value_at(data, path) for path in self.selected}
        return {path: value for path, value in values.items() if value is not None}

    def _completion(self, answer: Answer, prompt: str, warnings: WithWarnings) -> Completion:
        end = answer.end
        stop_type: StopType = "word" if end.stopped_by else "eos"
        if end.reason is FinishReason.LENGTH:
            stop_type = "limit"
        # The last token was sampled but not computed, unless the model ended its turn after it (source: `tokens_cached`
        # of llama-server).
        n_computed = max(0, end.usage.n_output_tokens - (stop_type != "eos"))
        completion: Completion = {
            "index": answer.index,
            "content": "",
            "tokens": [],
            "stop": True,
            "model": self.model_id,
            "tokens_predicted": end.usage.n_output_tokens,
            "tokens_evaluated": end.usage.n_prompt_tokens,
            "tokens_cached": end.usage.n_prompt_tokens + n_computed - end.usage.n_dropped_tokens,
            "generation_settings": generation_settings(self.requests[answer.index]),
            "prompt": prompt,
            "has_new_line": "\n" in answer.text,
            "truncated": end.usage.n_dropped_tokens > 0,
            "stop_type": stop_type,
            "stopping_word": end.stopped_by,
            "timings": timings_of(end),
        }
        if "warnings" in warnings:
            completion["warnings"] = warnings["warnings"]
        return completion


def generation_settings(request: Request) -> GenerationSettings:
    options = {item.name: getattr(request.sampling, item.name) for item in fields(SamplingOptions)}
    biases: tuple[tuple[int | str, float], ...] = (*request.sampling.logit_bias, *request.sampling.text_bias)
    limit = _NO_LIMIT if request.max_tokens is None else request.max_tokens
    return GenerationSettings(
        **options,
        n_predict=limit,
        stop=request.stop,
        max_tokens=limit,
        n_keep=request.n_keep,
        n_probs=request.n_logprobs or 0,
        ignore_eos=request.ignore_eos,
        repeat_last_n=request.sampling.penalty_last_n,
        samplers=SAMPLERS[:-1],  # infill is that of a request to fill in, which does not use it
        post_sampling_probs=request.logprobs_after_samplers,
        logit_bias=[{"token": token, "bias": bias if math.isfinite(bias) else None} for token, bias in biases],
    )


def probabilities_of(request: Request, entries: Sequence[TokenLogprob]) -> Probabilities:
    """Return the log probabilities of `entries`, or where `request` wants those after samplers their chances, as
    `completion_token_output::to_json` of llama-server does."""
    if request.logprobs_after_samplers:
        return [_sampled(entry) for entry in entries]
    return [_scored(entry) for entry in entries]


def _scored(entry: TokenLogprob) -> TokenProbability:
    own = _rival(entry.token, entry.piece, 0.0 if entry.logprob is None else entry.logprob)
    return {**own, "top_logprobs": [_rival(*rival) for rival in entry.top]}


def _rival(token: int, piece: bytes, logprob: float) -> RivalProbability:
    return {"id": token, "token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": logprob}


def _sampled(entry: TokenLogprob) -> SampledProbability:
    own = _sampled_rival(entry.token, entry.piece, 0.0 if entry.logprob is None else entry.logprob)
    return {**own, "top_probs": [_sampled_rival(*rival) for rival in entry.top]}


def _sampled_rival(token: int, piece: bytes, logprob: float) -> SampledRival:
    text = piece.decode("utf-8", "replace")
    return {"id": token, "token": text, "bytes": list(piece), "prob": math.exp(logprob)}


def _value_at(data: Any, path: str) -> Any:
    for name in path.split("/"):
        data = data.get(name) if isinstance(data, dict) else None
    return data
