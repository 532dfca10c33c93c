"""The engine's answers as OpenAI's objects, whole or in chunks, with llama.cpp's `timings` beside `usage`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, NotRequired, TypeAlias, TypeVar

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app import __version__
from app.engine.messages import Finished
from app.engine.request import FinishReason, Request, TokenLogprob
from app.protocol.chat import PromptProgress, ThreadUse, ToolCall, ToolCallDelta
from app.service.api.fields import WithWarnings
from app.service.api.openai.usage import (
    ChatTokenLogprob,
    TextLogprobs,
    Timings,
    Usage,
    chat_logprobs,
    text_logprobs,
    timings_of,
    total_of,
    usage_of,
)
from app.service.generation.generation import Answer, Delta

# What an answer depends on beside the request and the model: by it a client knows whether a seed gives the same again.
FINGERPRINT = f"localllm-{__version__}"
Choice = TypeVar("Choice")
ChunkChoice = TypeVar("ChunkChoice")
ChatReason: TypeAlias = Literal["stop", "length", "tool_calls"]
TextReason: TypeAlias = Literal["stop", "length"]
WholeObject: TypeAlias = Literal["chat.completion", "text_completion"]
ChunkObject: TypeAlias = Literal["chat.completion.chunk", "text_completion"]


class TimingsSoFar(TypedDict):
    predicted_n: NonNegativeInt


class PromptProgressObject(TypedDict):
    """llama-server's progress of a prompt: `processed` of `total` tokens, of which `cache` were there before. Besides,
    `left_ms` estimates the rest; one that has not begun (`total` 0) waits for `n_ahead` other answers; `machine` says
    that other programs make it slower."""

    total: NonNegativeInt
    cache: NonNegativeInt
    processed: NonNegativeInt
    time_ms: float
    left_ms: NotRequired[float]
    n_ahead: NotRequired[NonNegativeInt]
    machine: NotRequired[ThreadUse]


def progress_object(progress: PromptProgress) -> PromptProgressObject:
    data: PromptProgressObject = {
        "total": progress.n_tokens,
        "cache": progress.n_cached,
        "processed": progress.n_read,
        "time_ms": 1000 * progress.elapsed_s,
    }
    if progress.left_s is not None:
        data["left_ms"] = 1000 * progress.left_s
    if progress.n_ahead:
        data["n_ahead"] = progress.n_ahead
    if progress.machine is not None:
        data["machine"] = progress.machine
    return data


class CalledFunction(TypedDict):
    """A function with its arguments as JSON in a text."""

    name: str
    arguments: str


class CalledTool(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatCompletionMessage(TypedDict):
    """A message; `content` is null where there are only calls."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CalledTool]]


class ChatLogprobs(TypedDict):
    content: list[ChatTokenLogprob]
    refusal: None


class ChatChoice(TypedDict):
    index: NonNegativeInt
    message: ChatCompletionMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatReason


class TextChoice(TypedDict):
    index: NonNegativeInt
    text: str
    logprobs: TextLogprobs | None
    finish_reason: TextReason


class FunctionArgumentsDelta(TypedDict):
    arguments: str


class ToolCallChunk(TypedDict):
    """The new part of call `index`; only its first part has id and name."""

    index: NonNegativeInt
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunction | FunctionArgumentsDelta


class ChatDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallChunk]


class ChatChunkChoice(TypedDict):
    """The new part of answer `index`."""

    index: NonNegativeInt
    delta: ChatDelta
    logprobs: NotRequired[ChatLogprobs]
    finish_reason: ChatReason | None


class TextChunkChoice(TypedDict):
    """The new part of text `index`."""

    index: NonNegativeInt
    text: str
    logprobs: NotRequired[TextLogprobs]
    finish_reason: TextReason | None


class Completion(WithWarnings, Generic[Choice]):
    id: str
    object: WholeObject
    created: NonNegativeInt
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    timings: Timings


class Chunk(WithWarnings, Generic[Choice]):
    """An event of a stream; the last one is the word [DONE] instead."""

    id: str
    object: ChunkObject
    created: NonNegativeInt
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: NotRequired[Usage]
    timings: NotRequired[Timings | TimingsSoFar]
    prompt_progress: NotRequired[PromptProgressObject]


ChatCompletion: TypeAlias = Completion[ChatChoice]
TextCompletion: TypeAlias = Completion[TextChoice]
ChatChunk: TypeAlias = Chunk[ChatChunkChoice]
TextChunk: TypeAlias = Chunk[TextChunkChoice]


@dataclass(frozen=True, slots=True)
class CompletionFormatter(ABC, Generic[Choice, ChunkChoice]):
    """The objects made of the answers to `requests`, of which `n_each` in turn continue one prompt. Each text begins
    with the `echoed` part of its prompt, if any."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[WholeObject]
    chunk_object: ClassVar[ChunkObject]

    requests: Sequence[Request]
    model_id: str
    n_each: int
    echoed: tuple[str, ...] = ()
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def has_logprobs(self) -> bool:
        return self.requests[0].n_logprobs is not None

    def opening_chunks(self) -> list[Chunk[ChunkChoice]]:
        return [self._chunk([choice]) for choice in self._opening_choices()]

    def progress_chunk(self, progress: PromptProgress) -> Chunk[ChunkChoice]:
        """Return a chunk without new text: clients expect a choice in each."""
        chunk = self._chunk([self._chunk_choice(Delta(index=0))])
        chunk["prompt_progress"] = progress_object(progress)
        return chunk

    def chunk(self, delta: Delta, *, counts_tokens: bool) -> Chunk[ChunkChoice]:
        """Return the chunk of new text; with `counts_tokens` also the number of tokens so far."""
        chunk = self._chunk([self._chunk_choice(delta)])
        if counts_tokens:
            chunk["timings"] = {"predicted_n": delta.n_tokens}
        return chunk

    def final_chunk(self, answer: Answer, warnings: WithWarnings) -> Chunk[ChunkChoice]:
        return {**self._chunk([self._final_choice(answer)]), "timings": timings_of(answer.end), **warnings}

    def usage_chunk(self, answers: Sequence[Answer]) -> Chunk[ChunkChoice]:
        """Return the chunk after the final ones, for clients that ask for it."""
        return {**self._chunk([]), "usage": usage_of(self._total(answers), _n_reasoning_tokens(answers))}

    def whole(self, answers: Sequence[Answer], warnings: WithWarnings) -> Completion[Choice]:
        total = self._total(answers)
        return {
            "id": f"{self.id_prefix}{self.requests[0].request_id}",
            "object": self.whole_object,
            "created": self.created_s,
            "model": self.model_id,
            "system_fingerprint": FINGERPRINT,
            "choices": [self._choice(answer) for answer in answers],
            "usage": usage_of(total, _n_reasoning_tokens(answers)),
            "timings": timings_of(total),
            **warnings,
        }

    @abstractmethod
    def _choice(self, answer: Answer) -> Choice: ...
    @abstractmethod
    def _opening_choices(self) -> list[ChunkChoice]: ...
    @abstractmethod
    def _chunk_choice(self, delta: Delta) -> ChunkChoice: ...
    @abstractmethod
    def _final_choice(self, answer: Answer) -> ChunkChoice: ...

    def _chunk(self, choices: list[ChunkChoice]) -> Chunk[ChunkChoice]:
        return {
            "id": f"{self.id_prefix}{self.requests[0].request_id}",
            "object": self.chunk_object,
            "created": self.created_s,
            "model": self.model_id,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        }

    def _total(self, answers: Sequence[Answer]) -> Finished:
        """Return the cost of all `answers`, in whatever order they ended."""
        ends = [answer.end for answer in sorted(answers, key=lambda answer: answer.index)]
        return total_of([ends[begin : begin + self.n_each] for begin in range(0, len(ends), self.n_each)])


class ChatFormatter(CompletionFormatter[ChatChoice, ChatChunkChoice]):
    """The objects of a chat."""

    __slots__ = ()
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _choice(self, answer: Answer) -> ChatChoice:
        content = None if answer.calls and not answer.text else answer.text
        message: ChatCompletionMessage = {"role": "assistant", "content": content}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [_call(call) for call in answer.calls]
        return {
            "index": answer.index,
            "message": message,
            "logprobs": _chat_logprobs(answer.logprobs) if self.has_logprobs else None,
            "finish_reason": _chat_reason(answer),
        }

    def _opening_choices(self) -> list[ChatChunkChoice]:
        opening: ChatDelta = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": opening, "finish_reason": None} for index in range(len(self.requests))]

    def _chunk_choice(self, delta: Delta) -> ChatChunkChoice:
        choice: ChatChunkChoice = {"index": delta.index, "delta": _delta(delta), "finish_reason": None}
        if self.has_logprobs:
            choice["logprobs"] = _chat_logprobs(delta.logprobs)
        return choice

    def _final_choice(self, answer: Answer) -> ChatChunkChoice:
        return {"index": answer.index, "delta": {}, "finish_reason": _chat_reason(answer)}


class TextFormatter(CompletionFormatter[TextChoice, TextChunkChoice]):
    """The objects of text completions."""

    __slots__ = ()
    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _choice(self, answer: Answer) -> TextChoice:
        return {
            "index": answer.index,
            "text": (self.echoed[answer.index] if self.echoed else "") + answer.text,
            "logprobs": text_logprobs(answer.logprobs) if self.has_logprobs else None,
            "finish_reason": _text_reason(answer),
        }

    def _opening_choices(self) -> list[TextChunkChoice]:
        return [{"index": index, "text": text, "finish_reason": None} for index, text in enumerate(self.echoed)]

    def _chunk_choice(self, delta: Delta) -> TextChunkChoice:
        choice: TextChunkChoice = {"index": delta.index, "text": delta.text, "finish_reason": None}
        if self.has_logprobs:
            choice["logprobs"] = text_logprobs(delta.logprobs)
        return choice

    def _final_choice(self, answer: Answer) -> TextChunkChoice:
        return {"index": answer.index, "text": "", "finish_reason": _text_reason(answer)}


def _n_reasoning_tokens(answers: Iterable[Answer]) -> int:
    return sum(answer.n_reasoning_tokens for answer in answers)


def _text_reason(answer: Answer) -> TextReason:
    return "length" if answer.end.reason is FinishReason.LENGTH else "stop"


def _chat_reason(answer: Answer) -> ChatReason:
    reason = _text_reason(answer)
    return "tool_calls" if answer.calls and reason == "stop" else reason


def _delta(delta: Delta) -> ChatDelta:
    """Return thought, answer and calls under their names; clients take even an empty thought for one."""
    fields: ChatDelta = {}
    if delta.reasoning:
        fields["reasoning_content"] = delta.reasoning
    if delta.calls:
        fields["tool_calls"] = [_call_chunk(call) for call in delta.calls]
    if delta.text or not fields:
        fields["content"] = delta.text
    return fields


def _call(call: ToolCall | ToolCallDelta) -> CalledTool:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _call_chunk(call: ToolCallDelta) -> ToolCallChunk:
    if call.name:  # which only its first part has
        return {"index": call.index, **_call(call)}
    return {"index": call.index, "function": {"arguments": call.arguments}}


def _chat_logprobs(entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    return {"content": chat_logprobs(entries), "refusal": None}
