"""The engine's events -> Anthropic's message, whole or as its sequence of events.

Owns the fields, their order and the bounds of blocks. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.engine.protocol.messages import Finished
from app.engine.request import FinishReason
from app.service.api.anthropic.requests import CALL_ID_PREFIX
from app.service.api.anthropic.schemas import MessageUsage
from app.service.generation.generation import Answer, Delta
from app.service.tools.tool import ToolCallDelta

__all__ = ["MessageFormatter", "MessageStreamEvents"]

Event = dict[str, Any]
BlockKind = Literal["thinking", "text", "tool_use"]

# How a block begins, and how what is new in it is told.
_EMPTY: dict[BlockKind, Event] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
    "tool_use": {"type": "tool_use", "input": {}},
}
_DELTAS: dict[BlockKind, tuple[str, str]] = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}


@dataclass(frozen=True, slots=True)
class MessageFormatter:
    """The identity of one answer of the model called `model_id`, and the `advice` that the planner has of it."""

    request_id: str
    model_id: str
    advice: Mapping[str, Any] = field(default_factory=dict)

    def whole(self, answer: Answer) -> Event:
        """Return the answer in one piece."""
        return {**self.message(), "content": _blocks(answer), **_ending(answer), "usage": _usage(answer.end)}

    def message(self) -> Event:
        """Return a message with nothing in it."""
        return {
            "id": f"msg_{self.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self.model_id,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            **self.advice,
        }


class MessageStreamEvents:
    """The events of one answer. A block ends when another kind of text, or another call, begins."""

    def __init__(self, shape: MessageFormatter) -> None:
        self._shape = shape
        self._n_blocks = 0
        self._open: BlockKind | None = None

    def opening(self, n_prompt_tokens: int) -> Event:
        """Return the first event; how much of the prompt was cached is known at the end only."""
        usage = _counts(n_prompt_tokens, 0, 0)
        return {"type": "message_start", "message": {**self._shape.message(), "usage": usage}}

    def news(self, delta: Delta) -> Iterator[Event]:
        """Return the events of what is new."""
        if delta.reasoning:
            yield from self._say("thinking", delta.reasoning)
        if delta.text:
            yield from self._say("text", delta.text)
        for call in delta.calls:
            if call.name:
                yield from self._begin("tool_use", id=_call_id(call), name=call.name)
            if call.arguments:
                yield self._delta("tool_use", call.arguments)

    def ending(self, answer: Answer) -> Iterator[Event]:
        """Return the last events: why `answer` ended and what it took."""
        yield from self._end_block()
        yield {"type": "message_delta", "delta": _ending(answer), "usage": _usage(answer.end)}
        yield {"type": "message_stop"}

    def _say(self, kind: BlockKind, text: str) -> Iterator[Event]:
        if self._open != kind:
            yield from self._begin(kind)
        yield self._delta(kind, text)

    def _begin(self, kind: BlockKind, **fields: str) -> Iterator[Event]:
        yield from self._end_block()
        self._open = kind
        self._n_blocks += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": {**_EMPTY[kind], **fields}}

    def _end_block(self) -> Iterator[Event]:
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._index}
            self._open = None

    def _delta(self, kind: BlockKind, text: str) -> Event:
        name, field = _DELTAS[kind]
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": name, field: text}}

    @property
    def _index(self) -> int:
        return self._n_blocks - 1


def _blocks(answer: Answer) -> list[Event]:
    """Return thought, text and calls; one that the limit of tokens has cut short is none."""
    thought = [{**_EMPTY["thinking"], "thinking": answer.reasoning}] if answer.reasoning else []
    text = [{**_EMPTY["text"], "text": answer.text}] if answer.text else []
    calls = [(call, call.arguments_object()) for call in answer.calls]
    uses = [
        {"type": "tool_use", "id": _call_id(call), "name": call.name, "input": arguments}
        for call, arguments in calls
        if arguments is not None
    ]
    return [*thought, *text, *uses]


def _call_id(call: ToolCallDelta) -> str:
    return f"{CALL_ID_PREFIX}{call.call_id}"


def _ending(answer: Answer) -> Event:
    end = answer.end
    if end.reason is FinishReason.LENGTH:
        reason = "max_tokens"
    elif answer.calls:
        reason = "tool_use"
    else:
        reason = "stop_sequence" if end.stopped_by else "end_turn"
    return {"stop_reason": reason, "stop_sequence": end.stopped_by or None}


def _usage(finished: Finished) -> MessageUsage:
    usage = finished.usage
    return _counts(usage.n_prompt_tokens - usage.n_cached_tokens, usage.n_cached_tokens, usage.n_output_tokens)


def _counts(n_computed: int, n_cached: int, n_output: int) -> MessageUsage:
    return {
        "input_tokens": n_computed,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": n_output,
    }
