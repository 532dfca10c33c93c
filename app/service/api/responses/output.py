"""The items of a response's output, as they grow: reasoning, messages and calls.

Owns their fields and the bounds of items. Knows nothing of events and of the response around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from app.engine import request
from app.protocol.chat import ToolCallDelta
from app.service.api.openai.usage import ChatTokenLogprob, chat_logprobs
from app.service.api.responses.items import custom_input, encode_reasoning

Kind = Literal["reasoning", "message", "function_call", "custom_tool_call"]
ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]
_ID_PREFIX: dict[Kind, str] = {
    "reasoning": "rs_",
    "message": "msg_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
}


class ReasoningText(TypedDict):
    """The text of a thought."""

    type: Literal["reasoning_text"]
    text: str


class SummaryText(TypedDict):
    """The text of a thought, for clients that ask for a summary: the whole of it."""

    type: Literal["summary_text"]
    text: str


class OutputText(TypedDict):
    """The text of a message."""

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


class CustomCallItem(TypedDict):
    """The call of a custom tool, whose `input` is a text."""

    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    input: str


AnyItem: TypeAlias = ReasoningItem | MessageItem | FunctionCallItem | CustomCallItem
AnyPart: TypeAlias = ReasoningText | OutputText


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How a client wants reasoning, as its summary or with a copy to send back, and which tools are custom ones."""

    has_summary: bool = False
    has_encrypted: bool = False
    custom_tools: frozenset[str] = frozenset()


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
        return self.kind in ("function_call", "custom_tool_call")

    @property
    def is_summary(self) -> bool:
        """Whether the text is a summary of reasoning."""
        return self.kind == "reasoning" and self.form.has_summary

    def as_object(self, status: ItemStatus) -> AnyItem:
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
        if self.kind == "custom_tool_call":
            return {
                "id": self.item_id,
                "type": "custom_tool_call",
                "status": status,
                "call_id": self.call.call_id,
                "name": self.call.name,
                "input": custom_input(self.text) if self.text else "",
            }
        if self.kind == "reasoning":
            return self._reasoning(status)
        texts = [self._output_text()] if self.text else []
        return {"id": self.item_id, "type": "message", "status": status, "role": "assistant", "content": texts}

    def part(self) -> AnyPart:
        """Return the text as the only part of the content."""
        return self._reasoning_text() if self.kind == "reasoning" else self._output_text()

    def summary(self) -> SummaryText:
        """Return the text as the only part of the summary."""
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
