"""A tree of nodes as other apps write it -> messages of ours.

Pure and linear in the number of nodes. Nodes that hold no message are passed over: what follows them follows what came
before them. Nodes that no root leads to, such as a circle, are not reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.chat.conversation import Message, MessageContent

__all__ = ["ImportedTree", "TreeNode", "import_tree"]


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A place in a tree: the key of the one before it, and what was said or only thought there."""

    parent: str | None
    said: MessageContent | None
    thought: str = ""


@dataclass(frozen=True, slots=True)
class ImportedTree:
    """Messages with ids from 1 on, parents first, and the leaf that is shown (None where there is no message).
    `unreached` are the keys of nodes outside the tree."""

    messages: tuple[Message, ...]
    leaf_id: int | None
    unreached: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    key: str
    parent_id: int | None
    thought: str


def import_tree(nodes: Mapping[str, TreeNode], current: str) -> ImportedTree:
    """Return the messages of `nodes`; the branch shown ends at the node `current`, or is the last where there is none.

    Siblings come in the order in which they were said.
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
        message_id, thought = step.parent_id, step.thought + node.thought
        if node.said is not None:
            message_id = len(messages) + 1
            messages.append(_message(message_id, step.parent_id, node.said, thought))
            thought = ""
        last_ids[step.key] = message_id
        waiting += [_Step(key, message_id, thought) for key in _latest_first(children.get(step.key, []), nodes)]
    leaf_id = last_ids.get(current) or (messages[-1].id if messages else None)
    return ImportedTree(tuple(messages), leaf_id, tuple(key for key in nodes if key not in last_ids))


def _message(message_id: int, parent_id: int | None, said: MessageContent, thought: str) -> Message:
    fields = {name: getattr(said, name) for name in MessageContent.__dataclass_fields__}
    return Message(**{**fields, "reasoning": thought + said.reasoning}, id=message_id, parent_id=parent_id)


def _latest_first(keys: list[str], nodes: Mapping[str, TreeNode]) -> list[str]:
    def moment_ms(key: str) -> int:
        said = nodes[key].said
        return said.created_ms if said else 0

    return sorted(keys, key=moment_ms)[::-1]
