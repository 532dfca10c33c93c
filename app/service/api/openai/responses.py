"""The engine's answers as OpenAI's objects, whole or in chunks, with llama.cpp's `timings` beside `usage`.

Owns the fields and their order; other dialects take `timings_of` and `chat_logprobs`. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, Self, TypeVar

from app.engine.protocol.messages import Finished
from app.engine.request import FinishReason, Request, TokenLogprob, Usage
from app.service.api.fields import WithWarnings
from app.service.api.openai import schemas
from app.service.generation.generation import Answer, Delta
from app.service.tools.tool import ToolCallDelta

__all__ = ["ChatFormatter", "CompletionFormatter", "TextFormatter", "chat_logprobs", "timings_of"]

Choice = TypeVar("Choice")
ChunkChoice = TypeVar("ChunkChoice")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionFormatter(ABC, Generic[Choice, ChunkChoice]):
    """The identity of one call's response, and the objects made of its `n_answers` answers.

    Of these `n_each` in turn continue one prompt. Each text begins with the `echoed` part of its prompt, if any.
    """

    id_prefix: ClassVar[str]
    whole_object: ClassVar[schemas.WholeObject]
    chunk_object: ClassVar[schemas.ChunkObject]

    request_id: str
    model_id: str
    n_answers: int
    n_each: int
    has_logprobs: bool
    echoed: tuple[str, ...] = ()
    created_s: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, requests: Sequence[Request], model_id: str, n_each: int, echoed: tuple[str, ...] = ()) -> Self:
        """Return the formatter of the answers to `requests`: `n_each` variants of one, then those of the next."""
        return cls(
            request_id=requests[0].request_id,
            model_id=model_id,
            n_answers=len(requests),
            n_each=n_each,
            has_logprobs=requests[0].n_logprobs is not None,
            echoed=echoed,
        )

    def opening_chunks(self) -> list[schemas.Chunk[ChunkChoice]]:
        """Return the chunks before the first text."""
        return [self._chunk([choice]) for choice in self._opening_choices()]

    def chunk(self, delta: Delta, *, counts_tokens: bool) -> schemas.Chunk[ChunkChoice]:
        """Return the chunk of new text; with `counts_tokens` also the number of tokens so far."""
        chunk = self._chunk([self._chunk_choice(delta)])
        if counts_tokens:
            chunk["timings"] = {"predicted_n": delta.n_tokens}
        return chunk

    def final_chunk(self, answer: Answer, warnings: WithWarnings) -> schemas.Chunk[ChunkChoice]:
        """Return the chunk with the reason why `answer` ended and its cost."""
        return {**self._chunk([self._final_choice(answer)]), "timings": timings_of(answer.end), **warnings}

    def usage_chunk(self, answers: Sequence[Answer]) -> schemas.Chunk[ChunkChoice]:
        """Return the chunk after the final ones, for clients that ask for it."""
        return {**self._chunk([]), "usage": _usage(self._total(answers))}

    def whole(self, answers: Sequence[Answer], warnings: WithWarnings) -> schemas.Completion[Choice]:
        """Return the answers in one object."""
        total = self._total(answers)
        return {
            "id": f"{self.id_prefix}{self.request_id}",
            "object": self.whole_object,
            "created": self.created_s,
            "model": self.model_id,
            "choices": [self._choice(answer) for answer in answers],
            "usage": _usage(total),
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

    def _chunk(self, choices: list[ChunkChoice]) -> schemas.Chunk[ChunkChoice]:
        return {
            "id": f"{self.id_prefix}{self.request_id}",
            "object": self.chunk_object,
            "created": self.created_s,
            "model": self.model_id,
            "choices": choices,
        }

    def _total(self, answers: Sequence[Answer]) -> Finished:
        """Return the cost of all `answers`, in whatever order they ended."""
        ends = [answer.end for answer in sorted(answers, key=lambda answer: answer.index)]
        return _total([ends[begin : begin + self.n_each] for begin in range(0, len(ends), self.n_each)])


class ChatFormatter(CompletionFormatter[schemas.ChatChoice, schemas.ChatChunkChoice]):
    """The objects of a chat."""

    __slots__ = ()
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _choice(self, answer: Answer) -> schemas.ChatChoice:
        content = None if answer.calls and not answer.text else answer.text
        message: schemas.ChatCompletionMessage = {"role": "assistant", "content": content}
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

    def _opening_choices(self) -> list[schemas.ChatChunkChoice]:
        opening: schemas.ChatDelta = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": opening, "finish_reason": None} for index in range(self.n_answers)]

    def _chunk_choice(self, delta: Delta) -> schemas.ChatChunkChoice:
        choice: schemas.ChatChunkChoice = {"index": delta.index, "delta": _delta(delta), "finish_reason": None}
        if self.has_logprobs:
            choice["logprobs"] = _chat_logprobs(delta.logprobs)
        return choice

    def _final_choice(self, answer: Answer) -> schemas.ChatChunkChoice:
        return {"index": answer.index, "delta": {}, "finish_reason": _chat_reason(answer)}


class TextFormatter(CompletionFormatter[schemas.TextChoice, schemas.TextChunkChoice]):
    """The objects of text completions."""

    __slots__ = ()
    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _choice(self, answer: Answer) -> schemas.TextChoice:
        return {
            "index": answer.index,
            "text": (self.echoed[answer.index] if self.echoed else "") + answer.text,
            "logprobs": _text_logprobs(answer.logprobs) if self.has_logprobs else None,
            "finish_reason": _text_reason(answer),
        }

    def _opening_choices(self) -> list[schemas.TextChunkChoice]:
        return [{"index": index, "text": text, "finish_reason": None} for index, text in enumerate(self.echoed)]

    def _chunk_choice(self, delta: Delta) -> schemas.TextChunkChoice:
        choice: schemas.TextChunkChoice = {"index": delta.index, "text": delta.text, "finish_reason": None}
        if self.has_logprobs:
            choice["logprobs"] = _text_logprobs(delta.logprobs)
        return choice

    def _final_choice(self, answer: Answer) -> schemas.TextChunkChoice:
        return {"index": answer.index, "text": "", "finish_reason": _text_reason(answer)}


def _text_reason(answer: Answer) -> schemas.TextReason:
    return "length" if answer.end.reason is FinishReason.LENGTH else "stop"


def _chat_reason(answer: Answer) -> schemas.ChatReason:
    reason = _text_reason(answer)
    return "tool_calls" if answer.calls and reason == "stop" else reason


def _delta(delta: Delta) -> schemas.ChatDelta:
    """Return thought, answer and calls under their names; clients take even an empty thought for one."""
    fields: schemas.ChatDelta = {}
    if delta.reasoning:
        fields["reasoning_content"] = delta.reasoning
    if delta.calls:
        fields["tool_calls"] = [_call_chunk(call) for call in delta.calls]
    if delta.text or not fields:
        fields["content"] = delta.text
    return fields


def _call(call: ToolCallDelta) -> schemas.ToolCall:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _call_chunk(call: ToolCallDelta) -> schemas.ToolCallChunk:
    """Return the new part of a call; only its first part has the name."""
    if call.name:
        return {"index": call.index, **_call(call)}
    return {"index": call.index, "function": {"arguments": call.arguments}}


def chat_logprobs(entries: Sequence[TokenLogprob]) -> list[schemas.ChatTokenLogprob]:
    """Return tokens with their alternatives, as chat has them."""
    return [_chat_logprob(entry) for entry in entries]


def _chat_logprobs(entries: Sequence[TokenLogprob]) -> schemas.ChatLogprobs:
    return {"content": chat_logprobs(entries), "refusal": None}


def _chat_logprob(entry: TokenLogprob) -> schemas.ChatTokenLogprob:
    assert entry.logprob is not None, "only a prompt's first token has none, and chats do not report prompts"
    alternatives = [_token(piece, logprob) for piece, logprob in entry.top]
    return {**_token(entry.piece, entry.logprob), "top_logprobs": alternatives}


def _token(piece: bytes, logprob: float) -> schemas.TokenLogprob:
    """Return one token; `bytes` has what `token` cannot where a character is split over several."""
    return {"token": _text(piece), "logprob": logprob, "bytes": list(piece)}


def _text_logprobs(entries: Sequence[TokenLogprob]) -> schemas.TextLogprobs:
    return {
        "tokens": [_text(entry.piece) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [None if entry.logprob is None else _alternatives(entry) for entry in entries],
        "text_offset": [entry.offset for entry in entries],
    }


def _alternatives(entry: TokenLogprob) -> dict[str, float]:
    """Return alternatives by text, best first; of parts of characters, which read the same, only the best."""
    alternatives: dict[str, float] = {}
    for piece, logprob in entry.top:
        alternatives.setdefault(_text(piece), logprob)
    return alternatives


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _total(by_prompt: Sequence[Sequence[Finished]]) -> Finished:
    """Return the cost of several answers: each prompt counts once, and they ran side by side."""
    firsts = [min(ends, key=lambda item: item.usage.n_cached_tokens) for ends in by_prompt]  # it computed the prompt
    finished = [item for ends in by_prompt for item in ends]
    usages = [item.usage for item in finished]
    usage = Usage(
        n_prompt_tokens=sum(first.usage.n_prompt_tokens for first in firsts),
        n_cached_tokens=sum(first.usage.n_cached_tokens for first in firsts),
        n_output_tokens=sum(usage.n_output_tokens for usage in usages),
        n_drafted_tokens=sum(usage.n_drafted_tokens for usage in usages),
        n_accepted_tokens=sum(usage.n_accepted_tokens for usage in usages),
        n_passes=sum(usage.n_passes for usage in usages),
        n_dropped_tokens=sum(usage.n_dropped_tokens for usage in usages),
    )
    timings = replace(
        firsts[0].timings,
        prefill_s=max(first.timings.prefill_s for first in firsts),
        decode_s=max(item.timings.decode_s for item in finished),
        saved_s=sum(item.timings.saved_s for item in finished),
    )
    return replace(firsts[0], usage=usage, timings=timings)


def _usage(finished: Finished) -> schemas.Usage:
    usage = finished.usage
    return {
        "prompt_tokens": usage.n_prompt_tokens,
        "completion_tokens": usage.n_output_tokens,
        "total_tokens": usage.n_prompt_tokens + usage.n_output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.n_cached_tokens},
    }


def timings_of(finished: Finished) -> schemas.Timings:
    """Return `timings` with llama-server's names, and more. The decode rate leaves out the first token.

    `draft_saved_ms` is an estimate: one step saved for each accepted draft token, less the cost of verification.
    """
    usage, timings = finished.usage, finished.timings
    n_computed = usage.n_prompt_tokens - usage.n_cached_tokens
    return {
        "cache_n": usage.n_cached_tokens,
        "prompt_n": n_computed,
        "prompt_ms": timings.prefill_s * 1000,
        "prompt_per_token_ms": _each_ms(n_computed, timings.prefill_s),
        "prompt_per_second": _rate(n_computed, timings.prefill_s),
        "predicted_n": usage.n_output_tokens,
        "predicted_ms": timings.decode_s * 1000,
        "predicted_per_token_ms": _each_ms(usage.n_output_tokens - 1, timings.decode_s),
        "predicted_per_second": _rate(usage.n_output_tokens - 1, timings.decode_s),
        "dropped_n": usage.n_dropped_tokens,
        "draft_n": usage.n_drafted_tokens,
        "draft_n_accepted": usage.n_accepted_tokens,
        "draft_saved_ms": timings.saved_s * 1000,
        "tokens_per_pass": usage.n_output_tokens / usage.n_passes if usage.n_passes else 0.0,
        "queue_ms": timings.queue_s * 1000,
        "time_to_first_token_ms": timings.time_to_first_token_s * 1000,
    }


def _rate(n_tokens: int, seconds: float) -> float:
    return n_tokens / seconds if seconds > 0 and n_tokens > 0 else 0.0


def _each_ms(n_tokens: int, seconds: float) -> float:
    return 1000 * seconds / n_tokens if n_tokens > 0 else 0.0
