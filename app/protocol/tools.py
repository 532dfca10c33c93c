"""Tools that a client offers with a chat, and the calls that a model makes: the values of requests and answers.

Owns these values. Independent of who runs a tool (`app.tools`) and of how a model writes a call (`app.service.tools`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ToolCall", "ToolCallDelta", "ToolDefinition"]


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
