"""Conversion of a tree of nodes, as other apps write it, into a transcript.

Pure and linear in the number of nodes. Nodes without a message are skipped: their children follow their parent. Nodes
that no root reaches, such as a cycle, are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.chat.conversation import Chat, Message, MessageContent, Transcript
from app.chat.formats.json_reader import FormatError
from app.chat.text import provisional_title

__all__ = ["TreeNode", "import_tree"]


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A node of a tree: the key of its parent, and its message, or only reasoning for the next one."""

    parent: str | None
    message: MessageContent | None
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class _Step:
    key: str
    parent_id: int | None
    reasoning: str


def import_tree(
    chat: Chat, nodes: Mapping[str, TreeNode], current: str, place: str
) -> tuple[Transcript, tuple[str, ...]]:
    """Return `chat` with the messages of `nodes`, and the keys of nodes outside the tree.

    The shown branch ends at the node `current`, or at the last message; siblings are in the order of their times. What
    is empty or 0 in `chat` is derived from the messages. Raises FormatError about `place` if there is none.
    """
    children: dict[str | None, list[str]] = {}
    for key, node in nodes.items():
        children.setdefault(node.parent if node.parent in nodes else None, []).append(key)
    messages: list[Message] = []
    last_ids: dict[str, int | None] = {}  # of every node reached: the message that it is or follows
    waiting = [_Step(key, None, "") for key in _latest_first(children.get(None, []), nodes)]
    while waiting:
        step = waiting.pop()
        node = nodes[step.key]
        message_id, reasoning = step.parent_id, step.reasoning + node.reasoning
        if node.message is not None:
            message_id = len(messages) + 1
            messages.append(_message(message_id, step.parent_id, node.message, reasoning))
            reasoning = ""
        last_ids[step.key] = message_id
        waiting += [_Step(key, message_id, reasoning) for key in _latest_first(children.get(step.key, []), nodes)]
    if not messages:
        raise FormatError(place, "has no message that could be imported")
    unreached = tuple(key for key in nodes if key not in last_ids)
    leaf_id = last_ids.get(current) or messages[-1].id
    return Transcript(_completed(replace(chat, leaf_id=leaf_id), messages), tuple(messages)), unreached


def _completed(chat: Chat, messages: Sequence[Message]) -> Chat:
    moments = [message.created_ms for message in messages if message.created_ms]
    created_ms = chat.created_ms or min(moments, default=0)
    return replace(
        chat,
        title=" ".join(chat.title.split()) or provisional_title(messages[0].content),
        created_ms=created_ms,
        updated_ms=chat.updated_ms or max(moments, default=created_ms),
        model=chat.model or next((message.model for message in reversed(messages) if message.model), ""),
    )


def _message(message_id: int, parent_id: int | None, message: MessageContent, reasoning: str) -> Message:
    fields = {name: getattr(message, name) for name in MessageContent.__dataclass_fields__}
    return Message(**{**fields, "reasoning": reasoning + message.reasoning}, id=message_id, parent_id=parent_id)


def _latest_first(keys: list[str], nodes: Mapping[str, TreeNode]) -> list[str]:
    def moment_ms(key: str) -> int:
        message = nodes[key].message
        return message.created_ms if message else 0

    return sorted(keys, key=moment_ms)[::-1]
