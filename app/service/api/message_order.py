"""Messages in an order that strict chat templates take, where a dialect has no such rule.

Knows nothing of dialects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["PARAGRAPH", "in_order"]

PARAGRAPH = "\n\n"

Message = dict[str, Any]


def in_order(messages: Iterable[Message]) -> list[Message]:
    """Return `messages` with the system first and nobody twice in a row but tools.

    What the system says later on is told by the user.
    """
    ordered: list[Message] = []
    for message in messages:
        is_late = message["role"] == "system" and any(earlier["role"] != "system" for earlier in ordered)
        following = {**message, "role": "user"} if is_late else message
        if ordered and _is_same_speaker(ordered[-1], following):
            ordered[-1] = _joined(ordered[-1], following)
        else:
            ordered.append(following)
    return ordered


def _is_same_speaker(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two messages can be one; what is said after a call is not said before it."""
    is_before_calls = "tool_calls" not in one or not other["content"]
    return one["role"] == other["role"] != "tool" and is_before_calls


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> Message:
    texts = filter(None, (one["content"], other["content"]))
    calls = [*one.get("tool_calls", ()), *other.get("tool_calls", ())]
    message = {**other, "content": PARAGRAPH.join(texts)}
    return {**message, "content": message["content"] or None, "tool_calls": calls} if calls else message
