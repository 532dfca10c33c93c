"""Tools that a client offers with a chat, and the calls that a model makes: the values of requests and answers.

Owns these values. Independent of who runs a tool (`app.tools`) and of how a model writes a call (`app.service.tools`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A function as a model sees it: its name among all tools, what it does, and the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in an answer; `arguments` is the JSON text as the model wrote it, not yet safe for a terminal."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The new part of call `index` of a running answer: the first part has its id and name, the later ones have pieces
    of its JSON. `n_tokens` counts the answer's tokens so far, `response_id` names the answer."""

    index: int
    n_tokens: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    response_id: str = ""


def with_delta(calls: Sequence[ToolCall], delta: ToolCallDelta) -> tuple[ToolCall, ...]:
    """Return the calls of a running answer with a new part: of the last ones, or the next. Raises IndexError for one
    that leaves a gap."""
    if delta.index == len(calls):
        return (*calls, ToolCall(delta.call_id, delta.name, delta.arguments))
    call = calls[delta.index]
    changed = replace(call, arguments=call.arguments + delta.arguments)
    return (*calls[: delta.index], changed, *calls[delta.index + 1 :])
