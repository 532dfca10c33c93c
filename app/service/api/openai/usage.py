"""The cost of answers and the probabilities of their tokens in OpenAI's and llama.cpp's objects, for all dialects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NotRequired

from pydantic import NonNegativeFloat, NonNegativeInt
from typing_extensions import TypedDict

from app.engine import request
from app.engine.messages import Finished
from app.service.api.fields import Byte


class PromptTokensDetails(TypedDict):
    cached_tokens: NonNegativeInt


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: NonNegativeInt


class Usage(TypedDict):
    """The cost of answers in tokens; the details of completions where there is reasoning."""

    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt
    total_tokens: NonNegativeInt
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class Timings(TypedDict):
    """llama-server's `timings`, and more. `draft_saved_ms` is an estimate. `reasoning_cut_n` is there where the budget
    or the user ended the reasoning: its tokens before that."""

    cache_n: NonNegativeInt
    prompt_n: NonNegativeInt
    prompt_ms: NonNegativeFloat
    prompt_per_token_ms: NonNegativeFloat
    prompt_per_second: NonNegativeFloat
    predicted_n: NonNegativeInt
    predicted_ms: NonNegativeFloat
    predicted_per_token_ms: NonNegativeFloat
    predicted_per_second: NonNegativeFloat
    dropped_n: NonNegativeInt
    draft_n: NonNegativeInt
    draft_n_accepted: NonNegativeInt
    draft_saved_ms: float
    tokens_per_pass: NonNegativeFloat
    queue_ms: NonNegativeFloat
    time_to_first_token_ms: NonNegativeFloat
    reasoning_cut_n: NotRequired[NonNegativeInt]


class TokenLogprob(TypedDict):
    """A token; `bytes` has what `token` cannot where a character is split over several."""

    token: str
    logprob: float
    bytes: list[Byte]


class ChatTokenLogprob(TokenLogprob):
    """A token with its alternatives, best first."""

    top_logprobs: list[TokenLogprob]


class TextLogprobs(TypedDict):
    """The probabilities of a text, in four lists of the same length; the first token of a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[NonNegativeInt]


def chat_logprobs(entries: Sequence[request.TokenLogprob]) -> list[ChatTokenLogprob]:
    told: list[ChatTokenLogprob] = []
    for entry in entries:
        assert entry.logprob is not None, "only a prompt's first token has none, and chats do not report prompts"
        alternatives = [_token(piece, logprob) for _, piece, logprob in entry.top]
        told.append({**_token(entry.piece, entry.logprob), "top_logprobs": alternatives})
    return told


def _token(piece: bytes, logprob: float) -> TokenLogprob:
    return {"token": _text(piece), "logprob": logprob, "bytes": list(piece)}


def text_logprobs(entries: Sequence[request.TokenLogprob]) -> TextLogprobs:
    return {
        "tokens": [_key(entry.piece) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [None if entry.logprob is None else _alternatives(entry) for entry in entries],
        "text_offset": [entry.offset for entry in entries],
    }


def _alternatives(entry: request.TokenLogprob) -> dict[str, float]:
    """Return the likeliest tokens, best first, and the chosen one, which may be none of them: "there may be up to
    logprobs + 1 elements" (OpenAI's reference of /v1/completions)."""
    alternatives: dict[str, float] = {}
    for _, piece, logprob in entry.top:
        alternatives.setdefault(_key(piece), logprob)
    if entry.logprob is not None and all(token != entry.token for token, _, _ in entry.top):
        alternatives.setdefault(_key(entry.piece), entry.logprob)
    return alternatives


def _key(piece: bytes) -> str:
    """Return a token as text; one that is only a part of a character by its bytes, as OpenAI writes it: another part
    would read the same."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def total_of(by_prompt: Sequence[Sequence[Finished]]) -> Finished:
    """Return the cost of several answers: each prompt counts once, and they ran side by side."""
    firsts = [min(ends, key=lambda item: item.usage.n_cached_tokens) for ends in by_prompt]  # it computed the prompt
    finished = [item for ends in by_prompt for item in ends]
    usages = [item.usage for item in finished]
    usage = request.Usage(
        n_prompt_tokens=sum(first.usage.n_prompt_tokens for first in firsts),
        n_cached_tokens=sum(first.usage.n_cached_tokens for first in firsts),
        n_output_tokens=sum(usage.n_output_tokens for usage in usages),
        n_drafted_tokens=sum(usage.n_drafted_tokens for usage in usages),
        n_accepted_tokens=sum(usage.n_accepted_tokens for usage in usages),
        n_passes=sum(usage.n_passes for usage in usages),
        n_dropped_tokens=sum(usage.n_dropped_tokens for usage in usages),
        n_reasoning_tokens=sum(usage.n_reasoning_tokens for usage in usages),
        is_reasoning_cut=any(usage.is_reasoning_cut for usage in usages),
    )
    timings = replace(
        firsts[0].timings,
        prefill_s=max(first.timings.prefill_s for first in firsts),
        decode_s=max(item.timings.decode_s for item in finished),
        saved_s=sum(item.timings.saved_s for item in finished),
    )
    return replace(firsts[0], usage=usage, timings=timings)


def usage_of(finished: Finished, n_reasoning_tokens: int = 0) -> Usage:
    usage = finished.usage
    details: CompletionTokensDetails = {"reasoning_tokens": n_reasoning_tokens}
    told: Usage = {
        "prompt_tokens": usage.n_prompt_tokens,
        "completion_tokens": usage.n_output_tokens,
        "total_tokens": usage.n_prompt_tokens + usage.n_output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.n_cached_tokens},
    }
    return {**told, "completion_tokens_details": details} if n_reasoning_tokens else told


def timings_of(finished: Finished) -> Timings:
    """Return `timings` with llama-server's names, and more. The decode rate leaves out the first token."""
    usage, timings = finished.usage, finished.timings
    n_computed = usage.n_prompt_tokens - usage.n_cached_tokens
    told: Timings = {
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
        "draft_saved_ms": timings.saved_s * 1000,  # a step for each accepted token, less the cost of verification
        "tokens_per_pass": usage.n_output_tokens / usage.n_passes if usage.n_passes else 0.0,
        "queue_ms": timings.queue_s * 1000,
        "time_to_first_token_ms": timings.time_to_first_token_s * 1000,
    }
    return {**told, "reasoning_cut_n": usage.n_reasoning_tokens} if usage.is_reasoning_cut else told


def _rate(n_tokens: int, seconds: float) -> float:
    return n_tokens / seconds if seconds > 0 and n_tokens > 0 else 0.0


def _each_ms(n_tokens: int, seconds: float) -> float:
    return 1000 * seconds / n_tokens if n_tokens > 0 else 0.0
