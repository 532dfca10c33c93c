"""Instructions about tools in plain messages, for models whose chat template does not support tools.

Owns their text, and how earlier calls and results read as plain messages. Uses no role that the client did not use:
templates refuse unknown ones. Independent of templates.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from app.service.tools.formats import ToolFormat
from app.service.tools.tool import ToolOptions

__all__ = ["as_plain_messages", "with_instructions"]

_INTRODUCTION = "You can call functions. These are described in JSON, one a line:"
_FORM = "To call one, answer in exactly this form, with its name and its arguments as a JSON object:"
_ELSE = "Call a function only where it helps; answer in plain words otherwise. The results come with the next message."

Message = dict[str, Any]


def with_instructions(messages: Sequence[Message], tool_format: ToolFormat, options: ToolOptions) -> list[Message]:
    """Return `messages` with instructions in the system message, or else before the first message."""
    if not options.tools:
        return list(messages)
    functions = [json.dumps(tool.for_template()["function"], ensure_ascii=False) for tool in options.tools]
    form = _written([("NAME", "{…}")], tool_format)
    text = "\n\n".join(["\n".join((_INTRODUCTION, *functions)), f"{_FORM}\n{form}", _ELSE])
    first, *others = messages
    parts = (first["content"] or "", text) if first["role"] == "system" else (text, first["content"] or "")
    return [{**first, "content": "\n\n".join(filter(None, parts))}, *others]


def as_plain_messages(messages: Sequence[Message], tool_format: ToolFormat) -> list[Message]:
    """Return `messages` with calls in the model's format and results in messages of the user."""
    plain: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            _add_result(plain, message["content"] or "")
        elif "tool_calls" in message:
            functions = [call["function"] for call in message["tool_calls"]]
            calls = [(call["name"], json.dumps(call["arguments"], ensure_ascii=False)) for call in functions]
            text = "\n".join(filter(None, (message["content"], _written(calls, tool_format))))
            plain.append({"role": message["role"], "content": text})
        else:
            plain.append(message)
    return plain


def _add_result(plain: list[Message], content: str) -> None:
    """Add the result of a call, to the message of the result before it, since roles have to alternate."""
    result = f"<tool_response>\n{content}\n</tool_response>"
    if plain and plain[-1].get("role") == "user" and plain[-1]["content"].endswith("</tool_response>"):
        plain[-1] = {"role": "user", "content": f"{plain[-1]['content']}\n{result}"}
    else:
        plain.append({"role": "user", "content": result})


def _written(calls: Sequence[tuple[str, str]], tool_format: ToolFormat) -> str:
    syntax = tool_format.syntax
    one_by_one = [
        f"{syntax.before_name}{name}{syntax.before_arguments}{arguments}{syntax.after_arguments}"
        for name, arguments in calls
    ]
    return f"{syntax.before_first}{(syntax.between or '').join(one_by_one)}{syntax.after_last}"
