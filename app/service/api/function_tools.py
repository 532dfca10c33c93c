"""Tools as functions, in OpenAI's form, which other dialects share: `tools`, `tool_choice`, calls in messages.

Owns these fields, and makes tool options and template messages of them. Knows nothing of how a model writes a call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import StrictStr

from app.service.api.fields import Body
from app.service.tools.tool import NO_TOOLS, Tool, ToolOptions
from quantizer.errors import RequestError

__all__ = ["FunctionToolBody", "ToolCallBody", "ToolChoiceBody", "tool_options_of"]


class _FunctionBody(Body):
    name: StrictStr
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None


class FunctionToolBody(Body):
    """A tool; only functions are supported."""

    type: str = "function"
    function: _FunctionBody | None = None

    def tool(self) -> Tool:
        if self.type != "function" or self.function is None:
            raise RequestError(f"A tool has the type {self.type[:40]!r} or no function.", "Send functions.")
        return Tool(self.function.name, self.function.description or "", self.function.parameters or {})


class _NamedFunction(Body):
    name: StrictStr


class ToolChoiceBody(Body):
    """A `tool_choice` that names the function to call."""

    type: str = "function"
    function: _NamedFunction | None = None


class _CalledFunction(Body):
    name: StrictStr
    arguments: StrictStr | dict[str, Any] | None = None


class ToolCallBody(Body):
    """A tool call in an earlier message."""

    id: StrictStr = ""
    function: _CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Return the call with its arguments as an object. Raises RequestError for other arguments."""
        function = {"name": self.function.name, "arguments": _object(self.function.arguments or "{}")}
        return {"id": self.id, "type": "function", "function": function}


def tool_options_of(
    tools: Sequence[FunctionToolBody], choice: str | ToolChoiceBody | None, is_parallel: bool | None
) -> ToolOptions:
    """Return the tool options of a request; none with the choice "none". Raises RequestError for unknown choices."""
    if choice == "none":
        return NO_TOOLS
    only = ""
    if isinstance(choice, ToolChoiceBody):
        if choice.function is None:
            raise RequestError(f"tool_choice of type {choice.type[:40]!r} is not supported.", "Name a function.")
        only = choice.function.name
    elif choice not in (None, "auto", "required"):
        raise RequestError(f"tool_choice is {choice[:40]!r}.", "Use auto, none, required or name a function.")
    return ToolOptions(
        tools=tuple(tool.tool() for tool in tools),
        must_call=bool(only) or choice == "required",
        only=only,
        is_parallel=is_parallel is not False,
    )


def _object(arguments: str | dict[str, Any]) -> dict[str, Any]:
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestError("The arguments of a call in the messages are not a JSON object.", "Send them whole.")
    return value
