"""Calls of earlier turns that were cut off, by `max_tokens` or by a client that stopped, taken back as text.

Clients send the conversation with what had arrived of a call, and often with a result that says so. A template can
write neither. Works on messages in the form of chat templates, whose whole calls have arguments as an object. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.service.api.messages import PARAGRAPH_BREAK, Message, alternate_roles

Call = Mapping[str, Any]


def take_back_cut_calls(messages: list[Message]) -> list[Message]:
    """Return `messages` with incomplete calls as text of the assistant, and their results as text of the user.

    Those without such a call are returned as they are.
    """
    if not any(_is_cut(call) for message in messages for call in message.get("tool_calls", ())):
        return messages
    cut: dict[str, str] = {}  # name by id
    results: list[Message] = []  # of cut calls; the user says them after the tools
    mended: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            name = cut.get(message.get("tool_call_id") or "")
            if name is None:
                mended.append(message)
            else:
                results.append({"role": "user", "content": f"Result of the call of {name}: {message['content']}"})
            continue
        mended.extend(results)
        calls = [call for call in message.get("tool_calls", ()) if _is_cut(call)]
        cut |= {call["id"]: call["function"]["name"] for call in calls}
        results = []
        mended.append(_with_text_of(calls, message) if calls else message)
    return alternate_roles([*mended, *results])


def _is_cut(call: Call) -> bool:
    return not isinstance(call["function"]["arguments"], dict)


def _with_text_of(cut: Iterable[Call], message: Message) -> Message:
    texts = [f"Incomplete call of {call['function']['name']}: {call['function']['arguments']}" for call in cut]
    whole = [call for call in message["tool_calls"] if not _is_cut(call)]
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    plain["content"] = PARAGRAPH_BREAK.join(filter(None, (message["content"], *texts)))
    return {**plain, "tool_calls": whole} if whole else plain
