"""The engine's answer as Anthropic's message, whole or as its sequence of events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.engine.messages import Finished
from app.engine.request import FinishReason
from app.service.api.anthropic.requests import CALL_ID_PREFIX
from app.service.api.fields import WithWarnings
from app.service.api.messages import arguments_so_far
from app.service.generation.generation import Answer, Delta

Event = dict[str, Any]
BlockKind = Literal["thinking", "text", "tool_use", "compaction"]

# How a block begins, and the type and field of its deltas.
_EMPTY: dict[BlockKind, Event] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
    "tool_use": {"type": "tool_use", "input": {}},
    "compaction": {"type": "compaction", "content": None},
}
_DELTAS: dict[BlockKind, tuple[str, str]] = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
    "compaction": ("compaction_delta", "content"),
}


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


class ToolUseBlock(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class CompactionBlock(TypedDict):
    """A summary that a client sends first, in place of the messages that it stands for."""

    type: Literal["compaction"]
    content: str


StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "compaction"]
AnyBlock: TypeAlias = ThinkingBlock | TextBlock | ToolUseBlock | CompactionBlock


class MessageUsage(TypedDict):
    """The cost of an answer in tokens; `input_tokens` counts the computed ones."""

    input_tokens: NonNegativeInt
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: NonNegativeInt
    output_tokens: NonNegativeInt


class MessageResponse(WithWarnings):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnyBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


@dataclass(frozen=True, slots=True)
class MessageFormatter:
    """The identity of one answer of the model `model_id`, and the planner's `warnings`."""

    request_id: str
    model_id: str
    warnings: WithWarnings

    @property
    def message_id(self) -> str:
        return f"msg_{self.request_id}"

    def compaction(self, answer: Answer) -> MessageResponse:
        """Return the message whose only block is the summary in `answer`."""
        message = self.empty(_usage(answer.end))
        message["content"] = [{"type": "compaction", "content": answer.text}]
        message["stop_reason"] = "compaction"
        return message

    def whole(self, answer: Answer) -> MessageResponse:
        message = self.empty(_usage(answer.end))
        message["content"] = blocks(answer)
        message["stop_reason"] = _stop_reason(answer)
        message["stop_sequence"] = answer.end.stopped_by or None
        return message

    def empty(self, usage: MessageUsage) -> MessageResponse:
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.model_id,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            **self.warnings,
            "usage": usage,
        }


class MessageStreamEvents:
    """The events of one answer. A block ends when another kind of text, or another call, begins."""

    def __init__(self, formatter: MessageFormatter) -> None:
        self._formatter = formatter
        self._index = -1  # of the last block
        self._open: BlockKind | None = None

    def opening(self, n_prompt_tokens: int) -> Event:
        """Return the first event; the cached part of the prompt is known at the end only."""
        return {"type": "message_start", "message": self._formatter.empty(_counts(n_prompt_tokens, 0, 0))}

    def of_delta(self, delta: Delta) -> Iterator[Event]:
        if delta.reasoning:
            yield from self._add("thinking", delta.reasoning)
        if delta.text:
            yield from self._add("text", delta.text)
        for call in delta.calls:
            if call.name:
                yield from self._begin("tool_use", id=f"{CALL_ID_PREFIX}{call.call_id}", name=call.name)
            if call.arguments:
                yield self._delta("tool_use", call.arguments)

    def compaction(self, answer: Answer) -> Iterator[Event]:
        """Yield all events of a message whose only block is the summary in `answer`."""
        yield {"type": "message_start", "message": self._formatter.empty({**_usage(answer.end), "output_tokens": 0})}
        yield from self._add("compaction", answer.text)
        yield from self._end_block()
        delta = {"stop_reason": "compaction", "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": _usage(answer.end)}
        yield {"type": "message_stop"}

    def ending(self, answer: Answer) -> Iterator[Event]:
        yield from self._end_block()
        delta = {"stop_reason": _stop_reason(answer), "stop_sequence": answer.end.stopped_by or None}
        yield {"type": "message_delta", "delta": delta, "usage": _usage(answer.end)}
        yield {"type": "message_stop"}

    def _add(self, kind: BlockKind, text: str) -> Iterator[Event]:
        if self._open != kind:
            yield from self._begin(kind)
        yield self._delta(kind, text)

    def _begin(self, kind: BlockKind, **fields: str) -> Iterator[Event]:
        yield from self._end_block()
        self._open = kind
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": {**_EMPTY[kind], **fields}}

    def _end_block(self) -> Iterator[Event]:
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._index}
            self._open = None

    def _delta(self, kind: BlockKind, text: str) -> Event:
        name, field = _DELTAS[kind]
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": name, field: text}}


def blocks(answer: Answer) -> list[AnyBlock]:
    """Return thought, text and calls; one that the token limit has cut has the input that had come, as a stream has."""
    content: list[AnyBlock] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    for call in answer.calls:
        given = arguments_so_far(call.arguments)
        content.append({"type": "tool_use", "id": f"{CALL_ID_PREFIX}{call.call_id}", "name": call.name, "input": given})
    return content


def _stop_reason(answer: Answer) -> StopReason:
    if answer.end.reason is FinishReason.LENGTH:
        return "max_tokens"
    if answer.calls:
        return "tool_use"
    return "stop_sequence" if answer.end.stopped_by else "end_turn"


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
