"""The response object of /v1/responses, its items as they grow, and the events by which it comes.

Source: the types of openai 3.54.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NotRequired, TypeAlias, cast

from pydantic import NonNegativeFloat, NonNegativeInt
from typing_extensions import TypedDict

from app.engine import request
from app.engine.messages import Finished
from app.engine.request import FinishReason
from app.protocol.chat import PromptProgress, ToolCallDelta
from app.service.api.fields import WithWarnings
from app.service.api.openai.responses import progress_object
from app.service.api.openai.usage import ChatTokenLogprob, Timings, chat_logprobs, timings_of
from app.service.api.responses.requests import Item, OutputForm, encode_reasoning
from app.service.api.responses.tools import (
    CALL_KINDS,
    CallItem,
    CallKind,
    ItemStatus,
    call_fields,
    custom_input,
)
from app.service.generation.generation import Answer, Delta
from app.service.http.errors import code_of, message_of
from quantizer.system.errors import UserError

Kind = Literal["reasoning", "message"] | CallKind
_ID_PREFIX: dict[Kind, str] = {
    "reasoning": "rs_",
    "message": "msg_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "shell_call": "sh_",
    "local_shell_call": "lsh_",
    "apply_patch_call": "apc_",
    "tool_search_call": "tsc_",
}


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class SummaryText(TypedDict):
    """The text of a thought, for clients that ask for a summary: the whole of it."""

    type: Literal["summary_text"]
    text: str


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[None]
    logprobs: list[ChatTokenLogprob]


class ReasoningItem(TypedDict):
    """Thoughts, in `summary` where that is asked for. `encrypted_content` is for clients that keep it themselves."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText]
    encrypted_content: NotRequired[str | None]


class MessageItem(TypedDict):
    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


AnyItem: TypeAlias = ReasoningItem | MessageItem | CallItem
AnyPart: TypeAlias = ReasoningText | OutputText


@dataclass(frozen=True, slots=True)
class OutputItem:
    """Item `index` of the output. The text of a call is the arguments of `call`."""

    kind: Kind
    index: int
    response_id: str
    form: OutputForm
    text: str = ""
    call: ToolCallDelta = field(default_factory=lambda: ToolCallDelta(0))
    logprobs: tuple[request.TokenLogprob, ...] = ()

    @property
    def item_id(self) -> str:
        return f"{_ID_PREFIX[self.kind]}{self.response_id}_{self.index}"

    @property
    def is_call(self) -> bool:
        return self.kind in CALL_KINDS

    @property
    def is_summary(self) -> bool:
        return self.kind == "reasoning" and self.form.has_summary

    def as_object(self, status: ItemStatus) -> AnyItem:
        if self.is_call:
            called = {"id": self.item_id, "type": self.kind, "status": status, "call_id": self.call.call_id}
            offered = self.form.tool(self.call.name)
            return cast("AnyItem", {**called, **call_fields(offered, self.text, status)})
        if self.kind == "reasoning":
            return self._reasoning(status)
        texts = [self._output_text()] if self.text else []
        return {"id": self.item_id, "type": "message", "status": status, "role": "assistant", "content": texts}

    def part(self) -> AnyPart:
        """Return the text as the only part of the content."""
        return self._reasoning_text() if self.kind == "reasoning" else self._output_text()

    def summary(self) -> SummaryText:
        return {"type": "summary_text", "text": self.text}

    def _reasoning(self, status: ItemStatus) -> ReasoningItem:
        item: ReasoningItem = {
            "id": self.item_id,
            "type": "reasoning",
            "status": status,
            "summary": [self.summary()] if self.text and self.is_summary else [],
            "content": [self._reasoning_text()] if self.text and not self.is_summary else [],
        }
        if self.form.has_encrypted:
            item["encrypted_content"] = None if status == "in_progress" else encode_reasoning(self.text)
        return item

    def _reasoning_text(self) -> ReasoningText:
        return {"type": "reasoning_text", "text": self.text}

    def _output_text(self) -> OutputText:
        logprobs = chat_logprobs(self.logprobs)
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": logprobs}


def logprobs_of_text(entries: Sequence[request.TokenLogprob], text: str) -> tuple[request.TokenLogprob, ...]:
    """Return the last of `entries`, those of `text`: reasoning and tags before it have tokens too."""
    n_bytes, n_entries = len(text.encode("utf-8", "replace")), 0
    for entry in reversed(entries):
        if n_bytes <= 0 and entry.piece:
            break
        n_bytes -= len(entry.piece)
        n_entries += 1
    return tuple(entries[len(entries) - n_entries :])


Event = dict[str, Any]

_TEXT: dict[Kind, str] = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}
_SUMMARY_TEXT = "response.reasoning_summary_text"
_SUMMARY_PART = "response.reasoning_summary_part"
_CONTENT_PART = "response.content_part"

UNFINISHED = ("queued", "in_progress")
ResponseStatus: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(TypedDict):
    """The part of a prompt that was in the cache, and the part that is written to it."""

    cached_tokens: NonNegativeInt
    cache_write_tokens: NonNegativeInt


class OutputTokensDetails(TypedDict):
    reasoning_tokens: NonNegativeInt


class ResponseUsage(TypedDict):
    input_tokens: NonNegativeInt
    input_tokens_details: InputTokensDetails
    output_tokens: NonNegativeInt
    output_tokens_details: OutputTokensDetails
    total_tokens: NonNegativeInt


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class ResponseError(TypedDict):
    code: str
    message: str


class ConversationReference(TypedDict):
    id: str


class EchoedReasoning(TypedDict):
    effort: str | None
    summary: str | None


class ResponseObject(WithWarnings):
    """The next items of a conversation, with the fields of the request; `store` says whether it is stored. `timings`
    are llama-server's, of an answer that has ended."""

    id: str
    object: Literal["response"]
    created_at: NonNegativeInt
    completed_at: NonNegativeInt | None
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[AnyItem]
    usage: ResponseUsage | None
    store: bool
    background: bool
    conversation: ConversationReference | None
    instructions: str | list[Item] | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: EchoedReasoning
    safety_identifier: str | None
    service_tier: Literal["default"]
    temperature: NonNegativeFloat
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: NonNegativeFloat
    truncation: Literal["auto", "disabled"]
    user: str | None
    timings: NotRequired[Timings]


class CompactedResponse(WithWarnings):
    """What takes the place of a conversation: the user's messages, and an item with the summary of all."""

    id: str
    object: Literal["response.compaction"]
    created_at: NonNegativeInt
    output: list[Item]
    usage: ResponseUsage


def compacted(
    request_id: str, kept: Sequence[Item], answer: Answer, warnings: WithWarnings | None = None
) -> CompactedResponse:
    """Return the compaction of a conversation whose user's messages are `kept`, and whose summary is `answer`."""
    summary = {"id": f"cmp_{request_id}", "type": "compaction", "encrypted_content": encode_reasoning(answer.text)}
    return {
        "id": f"resp_{request_id}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*kept, summary],
        "usage": _usage(answer.end, answer.n_reasoning_tokens),
        **(warnings or {}),
    }


@dataclass(frozen=True, slots=True)
class ResponseFormatter:
    """The identity of one response of the model `model_id`, the fields it repeats, and the planner's `warnings`."""

    request_id: str
    model_id: str
    echo: Mapping[str, Any]
    warnings: WithWarnings = field(default_factory=WithWarnings)
    stores: bool = False
    form: OutputForm = field(default_factory=OutputForm)
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def response_id(self) -> str:
        return f"resp_{self.request_id}"

    def ended(self, answer: Answer, output: list[AnyItem]) -> ResponseObject:
        is_cut = answer.end.reason is FinishReason.LENGTH
        response = self.unfinished("incomplete" if is_cut else "completed", output)
        response["completed_at"] = None if is_cut else int(time.time())
        response["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
        response["usage"] = _usage(answer.end, answer.n_reasoning_tokens)
        response["timings"] = timings_of(answer.end)
        return response

    def failed(self, error: UserError, output: list[AnyItem]) -> ResponseObject:
        response = self.unfinished("failed", output)
        response["error"] = {"code": code_of(error), "message": message_of(error, hide_paths=True)}
        return response

    def unfinished(self, status: ResponseStatus, output: list[AnyItem]) -> ResponseObject:
        """Return the response without an end, or ended otherwise than by its answer."""
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_s,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model_id,
            "output": output,
            "usage": None,
            "store": self.stores,
            **self.echo,  # type: ignore[typeddict-item]  # the fields of the request that `ResponsesBody.echo` returns
            **self.warnings,
        }


class ResponseStreamEvents:
    """The events of one response. An item ends when another kind of text, or another call, begins."""

    def __init__(self, formatter: ResponseFormatter) -> None:
        self.formatter = formatter
        self._ended: list[AnyItem] = []
        self._open: OutputItem | None = None
        self._n_events = 0

    def opening(self, status: ResponseStatus = "in_progress") -> Iterator[Event]:
        yield self._event("response.created", response=self.so_far(status))
        yield self._event(f"response.{status}", response=self.so_far(status))

    def begun(self) -> Event:
        return self._event("response.in_progress", response=self.so_far())

    def so_far(self, status: ResponseStatus = "in_progress") -> ResponseObject:
        is_over = status not in UNFINISHED
        opened = [self._open.as_object("incomplete" if is_over else "in_progress")] if self._open else []
        return self.formatter.unfinished(status, [*self._ended, *opened])

    def progress(self, progress: PromptProgress) -> Event:
        """Return how much of the prompt is read, in the event that llama-server says it in."""
        event = self.begun()
        event["prompt_progress"] = progress_object(progress)
        return event

    def of_delta(self, delta: Delta) -> Iterator[Event]:
        if delta.reasoning:
            yield from self._add("reasoning", delta.reasoning)
        if delta.text:
            yield from self._add("message", delta.text, delta)
        for call in delta.calls:
            if call.name:
                yield from self._begin(self.formatter.form.tool(call.name).kind, call)
            if call.arguments:
                yield from self._add_arguments(call.arguments)

    def closing(self, answer: Answer) -> Iterator[Event]:
        """Return the events of the item that the end of the answer ends."""
        yield from self._end_item("incomplete" if answer.end.reason is FinishReason.LENGTH else "completed")

    def ended(self, answer: Answer) -> ResponseObject:
        return self.formatter.ended(answer, self._ended)

    def failed(self, error: UserError) -> ResponseObject:
        return self.formatter.failed(error, self.so_far("failed")["output"])

    def last(self, response: ResponseObject) -> Event:
        """Return the last event; `timings` stand beside the response in it, as llama-server's do, and in it."""
        event = self._event(f"response.{response['status']}", response=response)
        if "timings" in response:
            event["timings"] = response["timings"]
        return event

    def _add(self, kind: Kind, text: str, delta: Delta | None = None) -> Iterator[Event]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        assert self._open is not None, "an item has begun"
        logprobs = logprobs_of_text(delta.logprobs, text) if delta else ()
        self._open = replace(self._open, text=self._open.text + text, logprobs=(*self._open.logprobs, *logprobs))
        extra: Event = {"logprobs": chat_logprobs(logprobs)} if kind == "message" else {}
        yield self._of_text(self._open, "delta", delta=text, **extra)

    def _add_arguments(self, text: str) -> Iterator[Event]:
        """Add to the open call. What is no function's comes at the end: it is a part of these arguments."""
        if self._open is not None and self._open.is_call and self._open.kind != "function_call":
            self._open = replace(self._open, text=self._open.text + text)
        else:
            yield from self._add("function_call", text)

    def _begin(self, kind: Kind, call: ToolCallDelta | None = None) -> Iterator[Event]:
        yield from self._end_item("completed")
        made_by = self.formatter
        item = OutputItem(kind, len(self._ended), made_by.request_id, made_by.form, call=call or ToolCallDelta(0))
        self._open = item
        added = item.as_object("in_progress")
        yield self._event("response.output_item.added", output_index=item.index, item=added)
        if not item.is_call:
            yield self._of_part("added", item)

    def _end_item(self, status: ItemStatus) -> Iterator[Event]:
        if self._open is None:
            return
        item, self._open = self._open, None
        self._ended.append(item.as_object(status))
        if item.kind == "function_call":
            yield self._of_text(item, "done", name=item.form.tool(item.call.name).name, arguments=item.text)
        elif item.kind == "custom_tool_call":
            given = custom_input(item.text)
            yield self._of_text(item, "delta", delta=given)
            yield self._of_text(item, "done", input=given)
        elif not item.is_call:
            extra: Event = {"logprobs": chat_logprobs(item.logprobs)} if item.kind == "message" else {}
            yield self._of_text(item, "done", text=item.text, **extra)
            yield self._of_part("done", item)
        yield self._event("response.output_item.done", output_index=item.index, item=self._ended[-1])

    def _of_part(self, suffix: str, item: OutputItem) -> Event:
        name, part = (_SUMMARY_PART, item.summary()) if item.is_summary else (_CONTENT_PART, item.part())
        return self._event(f"{name}.{suffix}", **_place(item), part=part)

    def _of_text(self, item: OutputItem, suffix: str, **fields: Any) -> Event:
        name = _SUMMARY_TEXT if item.is_summary else _TEXT[item.kind]
        return self._event(f"{name}.{suffix}", **_place(item), **fields)

    def _event(self, event: str, /, **fields: Any) -> Event:
        self._n_events += 1
        return {"type": event, "sequence_number": self._n_events - 1, **fields}


def _place(item: OutputItem) -> Event:
    place: Event = {"item_id": item.item_id, "output_index": item.index}
    if item.is_call:
        return place
    return {**place, "summary_index" if item.is_summary else "content_index": 0}


def _usage(finished: Finished, n_reasoning_tokens: int) -> ResponseUsage:
    usage = finished.usage
    n_written = usage.n_prompt_tokens - usage.n_cached_tokens
    return {
        "input_tokens": usage.n_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.n_cached_tokens, "cache_write_tokens": n_written},
        "output_tokens": usage.n_output_tokens,
        "output_tokens_details": {"reasoning_tokens": n_reasoning_tokens},
        "total_tokens": usage.n_prompt_tokens + usage.n_output_tokens,
    }
