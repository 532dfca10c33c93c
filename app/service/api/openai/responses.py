"""The engine's token probabilities -> OpenAI's `logprobs`, in the form of each of its two routes; others took one.

Owns these fields. Knows nothing of how they were computed.

The engine's events -> OpenAI's response objects, with llama.cpp's `timings` beside `usage`.

Owns the fields and their order. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from app.engine.protocol.messages import Finished
from app.engine.request import FinishReason, Request, TokenLogprob, Usage
from app.service.api.openai import schemas as objects
from app.service.api.openai.schemas import Timings
from app.service.generation.generation import Answer, Delta
from app.service.tools.tool import ToolCallDelta

__all__ = ["LOGPROB_SHAPES", "CompletionFormatter", "Kind", "Logprobs", "chat_logprobs", "timings_of", "usage_of"]


def chat_logprobs(entries: Sequence[TokenLogprob]) -> list[objects.ChatTokenLogprob]:
    """Return tokens with their rivals, as chat has them."""
    return [_chat_entry(entry) for entry in entries]


def _chat(entries: Sequence[TokenLogprob]) -> objects.ChatLogprobs:
    return {"content": chat_logprobs(entries), "refusal": None}


def _chat_entry(entry: TokenLogprob) -> objects.ChatTokenLogprob:
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


Kind = Literal["chat", "text"]

_FINISH_REASONS = {FinishReason.LENGTH: "length"}
_ID_PREFIX: dict[Kind, str] = {"chat": "chatcmpl-", "text": "cmpl-"}
_OBJECT: dict[Kind, str] = {"chat": "chat.completion", "text": "text_completion"}
_CHUNK_OBJECT: dict[Kind, str] = {"chat": "chat.completion.chunk", "text": "text_completion"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionFormatter:
    """The identity of what one call gets, and the objects that are made of its `n_answers` answers.

    Of these `n_each` in turn go on from one prompt. Each text begins with what is `echoed` of its prompt, if anything.
    """

    kind: Kind
    request_id: str
    model_id: str
    n_answers: int
    n_each: int
    has_logprobs: bool
    echoed: tuple[str, ...] = ()
    created_s: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(
        cls, kind: Kind, wanted: Sequence[Request], model_id: str, n_each: int, echoed: tuple[str, ...] = ()
    ) -> CompletionFormatter:
        """Return the shape of the answers to `wanted`, which are `n_each` variants of one request after the other."""
        first = wanted[0]
        has_logprobs = first.n_logprobs is not None
        return cls(
            kind=kind,
            request_id=first.request_id,
            model_id=model_id,
            n_answers=len(wanted),
            n_each=n_each,
            has_logprobs=has_logprobs,
            echoed=echoed,
        )

    def openings(self) -> list[dict[str, Any]]:
        """Return the chunks before the first text, where the kind has them."""
        if self.kind == "chat":
            opening = {"delta": {"role": "assistant", "content": ""}}
            return [self._chunk(index, opening, None) for index in range(self.n_answers)]
        return [self._chunk(index, {"text": text}, None) for index, text in enumerate(self.echoed)]

    def text(self, delta: Delta, *, counts_tokens: bool) -> dict[str, Any]:
        """Return the chunk of what is new in an answer; with `counts_tokens` also how many tokens it has by now."""
        part: dict[str, Any] = {"delta": _delta(delta)} if self.kind == "chat" else {"text": delta.text}
        if self.has_logprobs:
            part["logprobs"] = LOGPROB_SHAPES[self.kind](delta.logprobs)
        chunk = self._chunk(delta.index, part, None)
        return {**chunk, "timings": {"predicted_n": delta.n_tokens}} if counts_tokens else chunk

    def ending(self, answer: Answer) -> dict[str, Any]:
        """Return the chunk that says why `answer` ended and what it took."""
        part: dict[str, Any] = {"delta": {}} if self.kind == "chat" else {"text": ""}
        return {**self._chunk(answer.index, part, _reason(answer)), "timings": timings_of(answer.end)}

    def usage(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the chunk after the endings, for clients that ask for it."""
        total = self._together(answers)
        return {**self._head(_CHUNK_OBJECT[self.kind]), "choices": [], "usage": usage_of(total)}

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the answers in one piece."""
        total = self._together(answers)
        return {
            **self._head(_OBJECT[self.kind]),
            "choices": [self._choice(answer) for answer in answers],
            "usage": usage_of(total),
            "timings": timings_of(total),
        }

    def _choice(self, answer: Answer) -> dict[str, Any]:
        thought = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
        calls = {"tool_calls": [_call(call) for call in answer.calls]} if answer.calls else {}
        content = None if calls and not answer.text else answer.text
        message = {"message": {"role": "assistant", "content": content, **thought, **calls}}
        part: dict[str, Any] = message if self.kind == "chat" else {"text": self._echo(answer) + answer.text}
        logprobs = LOGPROB_SHAPES[self.kind](answer.logprobs) if self.has_logprobs else None
        return {"index": answer.index, **part, "logprobs": logprobs, "finish_reason": _reason(answer)}

    def _echo(self, answer: Answer) -> str:
        return self.echoed[answer.index] if self.echoed else ""

    def _together(self, answers: Sequence[Answer]) -> Finished:
        """Return what all of `answers` took, in whatever order they ended."""
        ends = [answer.end for answer in sorted(answers, key=lambda answer: answer.index)]
        return _together([ends[begin : begin + self.n_each] for begin in range(0, len(ends), self.n_each)])

    def _head(self, name: str) -> dict[str, Any]:
        return {
            "id": _ID_PREFIX[self.kind] + self.request_id,
            "object": name,
            "created": self.created_s,
            "model": self.model_id,
        }

    def _chunk(self, index: int, part: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": index, **part, "finish_reason": finish_reason}
        return {**self._head(_CHUNK_OBJECT[self.kind]), "choices": [choice]}


def _delta(delta: Delta) -> dict[str, Any]:
    """Return thought, answer and calls under their names; clients take even an empty thought for one."""
    others: dict[str, Any] = {"reasoning_content": delta.reasoning} if delta.reasoning else {}
    if delta.calls:
        others["tool_calls"] = [{"index": call.index, **_call(call)} for call in delta.calls]
    return others if others and not delta.text else {**others, "content": delta.text}


def _call(call: ToolCallDelta) -> dict[str, Any]:
    """Return a call, or what is new in one: only its first part says which it is."""
    if not call.name:
        return {"function": {"arguments": call.arguments}}
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _together(by_prompt: Sequence[Sequence[Finished]]) -> Finished:
    """Return what several answers took: each prompt counts once, and they ran side by side."""
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


def usage_of(finished: Finished) -> objects.Usage:
    """Return OpenAI's `usage`."""
    usage = finished.usage
    return {
        "prompt_tokens": usage.n_prompt_tokens,
        "completion_tokens": usage.n_output_tokens,
        "total_tokens": usage.n_prompt_tokens + usage.n_output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.n_cached_tokens},
    }


def timings_of(finished: Finished) -> Timings:
    """Return `timings` with llama-server's names, and more. Decode's rate leaves out the first token.

    `draft_saved_ms` is an estimate: a step less for each draft token taken, less what verifying added.
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


def _reason(answer: Answer) -> str:
    return _FINISH_REASONS.get(answer.end.reason, "tool_calls" if answer.calls else "stop")
