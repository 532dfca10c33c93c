"""Calls of tools in a chat: their arguments, and their text as searches and exports have it. Pure.

Arguments are a model's text: they may be no JSON, or nested deeper than Python follows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from app.protocol.chat import ToolCall


def arguments_of(call: ToolCall) -> Mapping[str, Any] | None:
    """Return the arguments of a call by name; None where its text is no JSON object."""
    try:
        arguments = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def call_text(call: ToolCall) -> str:
    """Return the name of a call's tool and its arguments, a line each: "path: notes.txt"; not safe for a terminal.

    Texts are without the escapes of JSON, values in lists and objects each have a line.
    """
    arguments = arguments_of(call)
    lines = [call.arguments] if arguments is None else [f"{name}: {value}" for name, value in _leaves(arguments)]
    return "\n".join([call.name, *lines])


def _leaves(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the values that are neither list nor object, each with the name of what has it."""
    waiting = [("", arguments)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(key, value[key]) for key in reversed(value)]
        elif isinstance(value, list):
            waiting += [(name, item) for item in reversed(value)]
        else:
            yield name, value if isinstance(value, str) else json.dumps(value)
