"""The engine's events -> the response object of /v1/responses, whole or as its sequence of events.

Owns the fields, their order and the bounds of items. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from app.engine.protocol.messages import Finished
from app.engine.request import FinishReason
from app.service.api.responses.schemas import ResponseUsage
from app.service.generation.generation import Answer, Delta
from app.service.http.errors import code_of, message_of
from app.service.tools.tool import ToolCallDelta
from quantizer.errors import UserError

__all__ = ["ResponseFormatter", "ResponseStreamEvents"]

Event = dict[str, Any]
Kind = Literal["reasoning", "message", "function_call"]

_ID_PREFIX: dict[Kind, str] = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}
_TEXT: dict[Kind, str] = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


@dataclass(frozen=True, slots=True)
class _Item:
    """Number `index` of the output. `call` is what is called by a function_call, whose text are its arguments."""

    kind: Kind
    index: int
    response_id: str
    text: str = ""
    call: ToolCallDelta = field(default_factory=lambda: ToolCallDelta(0))

    @property
    def item_id(self) -> str:
        return f"{_ID_PREFIX[self.kind]}{self.response_id}_{self.index}"

    def told(self, status: str) -> Event:
        """Return the item as it is now."""
        head = {"id": self.item_id, "type": self.kind, "status": status}
        if self.kind == "function_call":
            return {**head, "call_id": self.call.call_id, "name": self.call.name, "arguments": self.text}
        parts = [self.part()] if self.text else []
        if self.kind == "reasoning":
            return {**head, "summary": [], "content": parts}
        return {**head, "role": "assistant", "content": parts}

    def part(self) -> Event:
        """Return the text as the one part of the content."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}


@dataclass(frozen=True, slots=True)
class ResponseFormatter:
    """The identity of one response of the model called `model_id`, and the `advice` that the planner has of it."""

    request_id: str
    model_id: str
    advice: Mapping[str, Any] = field(default_factory=dict)
    created_s: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answer: Answer) -> Event:
        """Return the response in one piece."""
        items = [_Item(kind, 0, self.request_id, text, call) for kind, text, call in _contents(answer)]
        return self.ended(answer, [replace(item, index=index) for index, item in enumerate(items)])

    def begun(self) -> Event:
        """Return the response with nothing in it."""
        return self._response("in_progress", [])

    def ended(self, answer: Answer, items: list[_Item]) -> Event:
        """Return the response whose output are `items`."""
        is_cut = answer.end.reason is FinishReason.LENGTH
        status = "incomplete" if is_cut else "completed"
        return {
            **self._response(status, [item.told("completed") for item in items]),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": _usage(answer.end),
        }

    def failed(self, error: UserError) -> Event:
        """Return the response that ended with `error`."""
        told = {"code": code_of(error), "message": message_of(error, hide_paths=True)}
        return {**self._response("failed", []), "error": told}

    def _response(self, status: str, output: list[Event]) -> Event:
        return {
            "id": f"resp_{self.request_id}",
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model_id,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "store": False,
            "usage": None,
            **self.advice,
        }


class ResponseStreamEvents:
    """The events of one response. An item ends when another kind of text, or another call, begins."""

    def __init__(self, shape: ResponseFormatter) -> None:
        self._shape = shape
        self._ended: list[_Item] = []
        self._open: _Item | None = None
        self._n_events = 0

    def opening(self) -> Iterator[Event]:
        """Return the first events."""
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=self._shape.begun())

    def news(self, delta: Delta) -> Iterator[Event]:
        """Return the events of what is new."""
        if delta.reasoning:
            yield from self._say("reasoning", delta.reasoning)
        if delta.text:
            yield from self._say("message", delta.text)
        for call in delta.calls:
            if call.name:
                yield from self._begin("function_call", call)
            if call.arguments:
                yield from self._say("function_call", call.arguments)

    def ending(self, answer: Answer) -> Iterator[Event]:
        """Return the last events, the very last with the whole response."""
        yield from self._end_item()
        response = self._shape.ended(answer, self._ended)
        yield self._event(f"response.{response['status']}", response=response)

    def failure(self, error: UserError) -> Event:
        """Return the last event of a response that cannot go on."""
        return self._event("response.failed", response=self._shape.failed(error))

    def _say(self, kind: Kind, text: str) -> Iterator[Event]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        assert self._open is not None, "an item has begun"
        self._open = replace(self._open, text=self._open.text + text)
        yield self._of_text(self._open, "delta", delta=text)

    def _begin(self, kind: Kind, call: ToolCallDelta | None = None) -> Iterator[Event]:
        yield from self._end_item()
        item = _Item(kind, len(self._ended), self._shape.request_id, call=call or ToolCallDelta(0))
        self._open = item
        yield self._of_item("response.output_item.added", item, "in_progress")
        if kind != "function_call":
            yield self._of_part("response.content_part.added", item)

    def _end_item(self) -> Iterator[Event]:
        if self._open is None:
            return
        item, self._open = self._open, None
        self._ended.append(item)
        yield self._of_text(item, "done", **{_whole_name(item): item.text})
        if item.kind != "function_call":
            yield self._of_part("response.content_part.done", item)
        yield self._of_item("response.output_item.done", item, "completed")

    def _of_item(self, name: str, item: _Item, status: str) -> Event:
        return self._event(name, output_index=item.index, item=item.told(status))

    def _of_part(self, name: str, item: _Item) -> Event:
        return self._event(name, **_place(item), part=item.part())

    def _of_text(self, item: _Item, what: str, **fields: str) -> Event:
        logprobs: dict[str, Any] = {"logprobs": []} if item.kind == "message" else {}
        return self._event(f"{_TEXT[item.kind]}.{what}", **_place(item), **fields, **logprobs)

    def _event(self, name: str, **fields: Any) -> Event:
        self._n_events += 1
        return {"type": name, "sequence_number": self._n_events - 1, **fields}


def _place(item: _Item) -> Event:
    place = {"item_id": item.item_id, "output_index": item.index}
    return place if item.kind == "function_call" else {**place, "content_index": 0}


def _whole_name(item: _Item) -> str:
    return "arguments" if item.kind == "function_call" else "text"


def _contents(answer: Answer) -> Iterator[tuple[Kind, str, ToolCallDelta]]:
    """Return kind, text and call of the items of a whole answer."""
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
