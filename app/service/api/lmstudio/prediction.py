"""An answer as the packets of LM Studio's SDK: fragments, tool calls, statistics, the progress of its prompt.

Source: lmstudio-js 2.0.0, `llmBackendInterface` and `LLMPredictionStats`; 1.5.0 has fewer fields and drops the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from app.engine.messages import AnswerProgress, Finished
from app.engine.request import FinishReason, TokenLogprob
from app.protocol.chat import ToolCall, ToolCallDelta, with_deltas
from app.protocol.errors import RequestError
from app.service.api.lmstudio.history import CLOSING_TAG, OPENING_TAG
from app.service.api.lmstudio.sdk_session import sdk_error
from app.service.generation.generation import Answer, Delta
from app.service.models.served_model import ServedModel

Item = TypeVar("Item")
INTERVAL_S = 0.25
Packet: TypeAlias = dict[str, Any]
ReasoningType: TypeAlias = Literal["none", "reasoning", "reasoningStartTag", "reasoningEndTag"]


class PacketMaker:
    """Makes the packets of one answer as it grows. Without `has_reasoning` only its text is sent.

    The text of an answer in a given form is parsed whole by clients, so reasoning must not come before it.
    """

    def __init__(self, *, has_reasoning: bool = True) -> None:
        self._has_reasoning = has_reasoning
        self.n_tokens = 0  # of the fragments so far
        self._is_reasoning = False
        self._calls: tuple[ToolCall, ...] = ()

    def of_delta(self, delta: Delta) -> Iterator[Packet]:
        n_new, self.n_tokens = delta.n_tokens - self.n_tokens, delta.n_tokens
        if delta.reasoning and self._has_reasoning:
            if not self._is_reasoning:
                self._is_reasoning = True
                yield _fragment(OPENING_TAG, 0, "reasoningStartTag")
            yield _fragment(delta.reasoning, n_new, "reasoning")
            n_new = 0
        if delta.text:
            yield from self._end_reasoning()
            yield _fragment(delta.text, n_new, "none", delta.logprobs)
        for call in delta.calls:
            yield from self._of_call(call)

    def of_end(self) -> Iterator[Packet]:
        """Yield the packets that are due when the answer has ended, but for the last one."""
        yield from self._end_reasoning()
        yield from self._end_call()

    def _end_reasoning(self) -> Iterator[Packet]:
        if self._is_reasoning:
            self._is_reasoning = False
            yield _fragment(f"{CLOSING_TAG}\n\n", 0, "reasoningEndTag")

    def _of_call(self, part: ToolCallDelta) -> Iterator[Packet]:
        yield from self._end_reasoning()
        if part.index == len(self._calls):
            yield from self._end_call()
            yield {"type": "toolCallGenerationStart", "toolCallId": part.call_id}
            yield {"type": "toolCallGenerationNameReceived", "name": part.name}
        self._calls = with_deltas(self._calls, [part])
        if part.arguments:
            yield {"type": "toolCallGenerationArgumentFragmentGenerated", "content": part.arguments}

    def _end_call(self) -> Iterator[Packet]:
        """Yield the end of the last call; one that was cut off has failed."""
        if not self._calls:
            return
        call = self._calls[-1]
        arguments = call.arguments_object()
        if arguments is None:
            error = RequestError(f"The call of {call.name} was cut off.", "Allow more tokens.")
            yield {"type": "toolCallGenerationFailed", "error": sdk_error(error), "rawContent": call.arguments}
        else:
            request = {"type": "function", "id": call.call_id, "name": call.name, "arguments": arguments}
            yield {"type": "toolCallGenerationEnd", "toolCallRequest": request, "rawContent": call.arguments}


def _fragment(text: str, n_tokens: int, kind: ReasoningType, logprobs: Sequence[TokenLogprob] = ()) -> Packet:
    fragment: Packet = {
        "content": text,
        "tokensCount": n_tokens,
        "containsDrafted": False,
        "reasoningType": kind,
        "isStructural": False,
    }
    packet: Packet = {"type": "fragment", "fragment": fragment}
    if logprobs:
        fragment["tokens"] = [  # as 2.0.0 has it
            {
                "text": _text(entry.piece),
                "id": entry.token,
                "logProb": entry.logprob or 0.0,
                "candidates": [{"text": _text(piece), "id": id_, "logProb": prob} for id_, piece, prob in entry.top],
            }
            for entry in logprobs
        ]
        packet["logprobs"] = [_alternatives(entry) for entry in logprobs]  # as 1.5.0 has it
    return packet


def _alternatives(entry: TokenLogprob) -> list[dict[str, Any]]:
    """Return a token with its alternatives, the token itself first."""
    others = [(_text(piece), logprob) for token, piece, logprob in entry.top if token != entry.token]
    return [{"text": text, "logprob": logprob} for text, logprob in ((_text(entry.piece), entry.logprob), *others)]


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")


def progress_packet(answer: AnswerProgress) -> Packet:
    """Return how much of the prompt has been computed; 1.5.0 reads no details."""
    n_total, n_done = answer.n_prompt_tokens, answer.n_computed_tokens
    details = {
        "cachedTokenCount": answer.n_cached_tokens,
        "totalPromptTokenCount": n_total,
        "processedPromptTokenCount": n_done,
        "unprocessedPromptTokenCount": n_total - n_done,
    }
    return {"type": "promptProcessingProgress", "progress": n_done / n_total, "details": details}


def stop_reason(answer: Answer, n_ctx: int) -> str:
    end = answer.end
    if end.reason is FinishReason.ABORTED:
        return "userStopped"
    if end.reason is FinishReason.LENGTH:
        n_tokens = end.usage.n_prompt_tokens + end.usage.n_output_tokens - end.usage.n_dropped_tokens
        return "contextLengthReached" if n_tokens >= n_ctx else "maxPredictedTokensReached"
    if any(call.arguments_object() is not None for call in answer.calls):
        return "toolCalls"
    return "stopStringFound" if end.stopped_by else "eosFound"


def stats_of(answer: Answer, n_ctx: int) -> Packet:
    end: Finished = answer.end
    usage, timings = end.usage, end.timings
    stats: Packet = {
        "stopReason": stop_reason(answer, n_ctx),
        "timeToFirstTokenSec": timings.time_to_first_token_s,
        "totalTimeSec": timings.time_to_first_token_s + timings.decode_s,
        "promptTokensCount": usage.n_prompt_tokens,
        "predictedTokensCount": usage.n_output_tokens,
        "totalTokensCount": usage.n_prompt_tokens + usage.n_output_tokens,
    }
    if timings.decode_s > 0:
        stats["tokensPerSecond"] = usage.n_output_tokens / timings.decode_s
    if end.stopped_by:
        stats["stopString"] = end.stopped_by
    if usage.n_drafted_tokens:
        stats["totalDraftTokensCount"] = usage.n_drafted_tokens
        stats["acceptedDraftTokensCount"] = usage.n_accepted_tokens
        stats["rejectedDraftTokensCount"] = usage.n_drafted_tokens - usage.n_accepted_tokens
    return stats


def user_stopped(n_tokens: int) -> Packet:
    """Return the statistics of an answer that its client has cancelled."""
    return {"stopReason": "userStopped", "predictedTokensCount": n_tokens}


async def prompt_progress(model: ServedModel, request_id: str) -> AnswerProgress | None:
    """Return the progress of a request whose prompt is being computed, None for any other."""
    metrics = await model.engine.metrics() if model.is_loaded else None
    running = metrics.running if metrics else ()
    found = next((answer for answer in running if answer.request_id == request_id), None)
    return found if found and found.n_computed_tokens < found.n_prompt_tokens else None


async def with_progress(
    items: AsyncGenerator[Item, None],
    progress: Callable[[], Awaitable[AnswerProgress | None]],
    interval_s: float = INTERVAL_S,
) -> AsyncGenerator[Item | AnswerProgress, None]:
    """Yield `items`, which are closed with this generator; before the first one, `progress` as it grows."""
    coming = asyncio.ensure_future(anext(items, None))
    n_before = -1
    try:
        while not (await asyncio.wait({coming}, timeout=interval_s))[0]:
            found = await progress()
            if found is not None and found.n_computed_tokens > n_before and not coming.done():
                n_before = found.n_computed_tokens
                yield found
        first = coming.result()
        if first is not None:
            yield first
            async for item in items:
                yield item
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await items.aclose()
