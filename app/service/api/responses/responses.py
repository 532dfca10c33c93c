"""The engine's answer as the response object of /v1/responses, whole or as its sequence of events.

Owns the fields, their order and the bounds of items. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from pydantic import NonNegativeInt
from typing_extensions import TypedDict

from app.engine.protocol.messages import Finished
from app.engine.request import FinishReason
from app.service.api.fields import WithWarnings
from app.service.api.openai.usage import PromptTokensDetails
from app.service.generation.generation import Answer, Delta
from app.service.http.errors import code_of, message_of
from app.service.tools.tool import ToolCallDelta
from quantizer.errors import UserError

__all__ = ["Event", "ResponseFormatter", "ResponseObject", "ResponseStreamEvents"]

Event = dict[str, Any]
Kind = Literal["reasoning", "message", "function_call"]

_ID_PREFIX: dict[Kind, str] = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}
_TEXT: dict[Kind, str] = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


ItemStatus: TypeAlias = Literal["in_progress", "completed"]


ResponseStatus: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class ReasoningText(TypedDict):
    """The text of a thought."""

    type: Literal["reasoning_text"]
    text: str


class OutputText(TypedDict):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[None]
    logprobs: list[None]


class ReasoningItem(TypedDict):
    """Thoughts; there is no summary of them."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[None]
    content: list[ReasoningText]


class MessageItem(TypedDict):
    """A message."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class FunctionCallItem(TypedDict):
    """A tool call; `arguments` are JSON in a text."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ReasoningTokens(TypedDict):
    """Thoughts are not counted by themselves."""

    reasoning_tokens: Literal[0]


class ResponseUsage(TypedDict):
    """The cost of a response in tokens."""

    input_tokens: NonNegativeInt
    input_tokens_details: PromptTokensDetails
    output_tokens: NonNegativeInt
    output_tokens_details: ReasoningTokens
    total_tokens: NonNegativeInt


class IncompleteDetails(TypedDict):
    """The reason why a response is cut short."""

    reason: Literal["max_output_tokens"]


class ResponseError(TypedDict):
    """The reason why a response failed."""

    code: str
    message: str


class ResponseObject(WithWarnings):
    """The next items of a conversation. Nothing is stored."""

    id: str
    object: Literal["response"]
    created_at: NonNegativeInt
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[ReasoningItem | MessageItem | FunctionCallItem]
    parallel_tool_calls: Literal[True]
    tool_choice: Literal["auto"]
    tools: list[None]
    store: Literal[False]
    usage: ResponseUsage | None


@dataclass(frozen=True, slots=True)
class _Item:
    """Item `index` of the output. The text of a function_call is the arguments of `call`."""

    kind: Kind
    index: int
    response_id: str
    text: str = ""
    call: ToolCallDelta = field(default_factory=lambda: ToolCallDelta(0))

    @property
    def item_id(self) -> str:
        return f"{_ID_PREFIX[self.kind]}{self.response_id}_{self.index}"

    def as_object(self, status: ItemStatus) -> ReasoningItem | MessageItem | FunctionCallItem:
        """Return the item as it is now."""
        if self.kind == "function_call":
            return {
                "id": self.item_id,
                "type": "function_call",
                "status": status,
                "call_id": self.call.call_id,
                "name": self.call.name,
                "arguments": self.text,
            }
        if self.kind == "reasoning":
            thoughts = [self._reasoning_text()] if self.text else []
            return {"id": self.item_id, "type": "reasoning", "status": status, "summary": [], "content": thoughts}
        texts = [self._output_text()] if self.text else []
        return {"id": self.item_id, "type": "message", "status": status, "role": "assistant", "content": texts}

    def part(self) -> ReasoningText | OutputText:
        """Return the text as the only part of the content."""
        return self._reasoning_text() if self.kind == "reasoning" else self._output_text()

    def _reasoning_text(self) -> ReasoningText:
        return {"type": "reasoning_text", "text": self.text}

    def _output_text(self) -> OutputText:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}


@dataclass(frozen=True, slots=True)
class ResponseFormatter:
    """The identity of one response of the model `model_id`, and the planner's `warnings`."""

    request_id: str
    model_id: str
    warnings: WithWarnings
    created_s: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answer: Answer) -> ResponseObject:
        """Return the response in one piece."""
        contents = enumerate(_contents(answer))
        items = [_Item(kind, index, self.request_id, text, call) for index, (kind, text, call) in contents]
        return self.ended(answer, items)

    def begun(self) -> ResponseObject:
        """Return the response with nothing in it."""
        return self._response("in_progress", [])

    def ended(self, answer: Answer, items: list[_Item]) -> ResponseObject:
        """Return the response with the output `items`."""
        is_cut = answer.end.reason is FinishReason.LENGTH
        response = self._response("incomplete" if is_cut else "completed", items)
        response["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
        response["usage"] = _usage(answer.end)
        return response

    def failed(self, error: UserError) -> ResponseObject:
        """Return the response that ended with `error`."""
        response = self._response("failed", [])
        response["error"] = {"code": code_of(error), "message": message_of(error, hide_paths=True)}
        return response

    def _response(self, status: ResponseStatus, items: list[_Item]) -> ResponseObject:
        return {
            "id": f"resp_{self.request_id}",
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model_id,
            "output": [item.as_object("completed") for item in items],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "store": False,
            "usage": None,
            **self.warnings,
        }


class ResponseStreamEvents:
    """The events of one response. An item ends when another kind of text, or another call, begins."""

    def __init__(self, formatter: ResponseFormatter) -> None:
        self._formatter = formatter
        self._ended: list[_Item] = []
        self._open: _Item | None = None
        self._n_events = 0

    def opening(self) -> Iterator[Event]:
        """Return the first events."""
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=self._formatter.begun())

    def of_delta(self, delta: Delta) -> Iterator[Event]:
        """Return the events of new text."""
        if delta.reasoning:
            yield from self._add("reasoning", delta.reasoning)
        if delta.text:
            yield from self._add("message", delta.text)
        for call in delta.calls:
            if call.name:
                yield from self._begin("function_call", call)
            if call.arguments:
                yield from self._add("function_call", call.arguments)

    def ending(self, answer: Answer) -> Iterator[Event]:
        """Return the last events, the very last with the whole response."""
        yield from self._end_item()
        response = self._formatter.ended(answer, self._ended)
        yield self._event(f"response.{response['status']}", response=response)

    def failure(self, error: UserError) -> Event:
        """Return the last event of a response that cannot go on."""
        return self._event("response.failed", response=self._formatter.failed(error))

    def _add(self, kind: Kind, text: str) -> Iterator[Event]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        assert self._open is not None, "an item has begun"
        self._open = replace(self._open, text=self._open.text + text)
        yield self._of_text(self._open, "delta", delta=text)

    def _begin(self, kind: Kind, call: ToolCallDelta | None = None) -> Iterator[Event]:
        yield from self._end_item()
        item = _Item(kind, len(self._ended), self._formatter.request_id, call=call or ToolCallDelta(0))
        self._open = item
        yield self._of_item("response.output_item.added", item, "in_progress")
        if kind != "function_call":
            yield self._of_part("response.content_part.added", item)

    def _end_item(self) -> Iterator[Event]:
        if self._open is None:
            return
        item, self._open = self._open, None
        self._ended.append(item)
        yield self._of_text(item, "done", **{"arguments" if item.kind == "function_call" else "text": item.text})
        if item.kind != "function_call":
            yield self._of_part("response.content_part.done", item)
        yield self._of_item("response.output_item.done", item, "completed")

    def _of_item(self, name: str, item: _Item, status: ItemStatus) -> Event:
        return self._event(name, output_index=item.index, item=item.as_object(status))

    def _of_part(self, name: str, item: _Item) -> Event:
        return self._event(name, **_place(item), part=item.part())

    def _of_text(self, item: _Item, suffix: str, **fields: str) -> Event:
        logprobs: dict[str, Any] = {"logprobs": []} if item.kind == "message" else {}
        return self._event(f"{_TEXT[item.kind]}.{suffix}", **_place(item), **fields, **logprobs)

    def _event(self, name: str, **fields: Any) -> Event:
        self._n_events += 1
        return {"type": name, "sequence_number": self._n_events - 1, **fields}


def _place(item: _Item) -> Event:
    place = {"item_id": item.item_id, "output_index": item.index}
    return place if item.kind == "function_call" else {**place, "content_index": 0}


def _contents(answer: Answer) -> Iterator[tuple[Kind, str, ToolCallDelta]]:
    """Yield kind, text and call of the items of a whole answer."""
    none = ToolCallDelta(0)
    if answer.reasoning:
        yield "reasoning", answer.reasoning, none
    if answer.text:
        yield "message", answer.text, none
    for call in answer.calls:
        yield "function_call", call.arguments, call


def _usage(finished: Finished) -> ResponseUsage:
    usage = finished.usage
    return {
        "input_tokens": usage.n_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.n_cached_tokens},
        "output_tokens": usage.n_output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.n_prompt_tokens + usage.n_output_tokens,
    }
