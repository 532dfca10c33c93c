"""Tools that a client offers with a request, and their calls as parts of an answer, in any dialect.

Owns the limits of tools, how parts of a call are merged, and the ids of calls. Independent of how models write calls.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.protocol.errors import RequestError

MAX_TOOLS = 512
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ID_CHARACTERS = 9  # Mistral's templates take nine letters and digits, the others anything
_ID_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Tool:
    """A function with a name, what it does, and the JSON schema of its arguments; an empty one allows any object.

    Raises RequestError for a name that cannot be parsed in a call.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            cause = f"The tool name {self.name[:80]!r} is invalid."
            raise RequestError(cause, "Use 1 to 64 letters, digits, underscores, dots and dashes.")

    def for_template(self) -> dict[str, Any]:
        """Return the tool in the form of chat templates (source: transformers, utils/chat_template_utils.py)."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """The `tools` of a request. With `must_call` the answer must be a call, of the tool `only` if that is given.

    Unless `is_parallel`, at most one call is made. Raises RequestError for too many tools, two of one name, and an
    unknown `only`.
    """

    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    only: str = ""
    is_parallel: bool = True

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if len(names) > MAX_TOOLS:
            raise RequestError(f"{len(names)} tools were given.", f"Give at most {MAX_TOOLS}.")
        if twice := next((name for name, count in Counter(names).items() if count > 1), ""):
            raise RequestError(f"Two tools are named {twice}.", "Give each a name of its own.")
        if self.only and self.only not in names:
            raise RequestError(f"tool_choice names {self.only[:64]!r}, which is not in tools.", "Add it to tools.")
        if self.must_call and not names:
            raise RequestError("A tool call is required and no tools were given.", "Give tools.")

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that an answer may call."""
        return tuple(tool for tool in self.tools if not self.only or tool.name == self.only)


NO_TOOLS = ToolOptions()


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The new part of call `index`: the first one has its id and name; `arguments` is a piece of JSON."""

    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""

    def arguments_object(self) -> dict[str, Any] | None:
        """Return the arguments of a complete call, None for one that was cut off."""
        try:
            value = json.loads(self.arguments or "{}")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class ParsedText:
    """New text of an answer, new parts of its tool calls, one for each call at most, and new reasoning."""

    text: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    reasoning: str = ""


def merge_deltas(parts: Iterable[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """Return `parts` with those of one call merged."""
    calls: dict[int, ToolCallDelta] = {}
    for part in parts:
        begun = calls.get(part.index)
        calls[part.index] = replace(begun, arguments=begun.arguments + part.arguments) if begun else part
    return tuple(calls.values())


def new_call_id() -> str:
    """Return an id that every template accepts."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_CHARACTERS))
