"""The tools of one request in any dialect: their limits, which may be called, and the ids of calls."""

from __future__ import annotations

import re
import secrets
import string
from collections import Counter
from dataclasses import dataclass
from typing import Any

from app.protocol.chat import Tool
from app.protocol.errors import RequestError

MAX_TOOLS = 512
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ID_CHARACTERS = 9  # Mistral's templates take nine letters and digits, the others anything
_ID_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """The `tools` of a request. With `must_call` the answer must be a call, of the tool `only` if that is given.

    Unless `is_parallel`, at most one call is made. Raises RequestError for an invalid name, too many tools, two of one
    name, and an unknown `only`.
    """

    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    only: str = ""
    is_parallel: bool = True

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if invalid := next((name for name in names if not _NAME.fullmatch(name)), None):
            cause = f"The tool name {invalid[:80]!r} is invalid."  # it could not be parsed in a call
            raise RequestError(cause, "Use 1 to 64 letters, digits, underscores, dots and dashes.")
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


def tool_for_template(tool: Tool) -> dict[str, Any]:
    """Return a tool in the form of chat templates (source: transformers, utils/chat_template_utils.py)."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def new_call_id() -> str:
    """Return an id that every template accepts."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_CHARACTERS))
