"""The tree of a chat's branches: what is shown, what lies beside it, where a step to the left or right leads.

Pure. An edited question is a sibling of the question, an answer made again a sibling of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.chat.message import Message

__all__ = ["Tree"]


class Tree:
    """The messages of one chat by their ids. Raises KeyError for an id that is none of them."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._messages = {message.id: message for message in sorted(messages, key=lambda message: message.id)}
        self._children: dict[int | None, list[int]] = {}
        for message in self._messages.values():
            self._children.setdefault(message.parent_id, []).append(message.id)

    def path(self, leaf_id: int | None) -> tuple[Message, ...]:
        """Return the messages from a root down to `leaf_id`; none for None."""
        path = []
        while leaf_id is not None:
            path.append(self._messages[leaf_id])
            leaf_id = path[-1].parent_id
        return tuple(reversed(path))

    def siblings(self, message_id: int) -> tuple[int, ...]:
        """Return the ids of all versions of a message, itself among them, oldest first."""
        return tuple(self._children[self._messages[message_id].parent_id])

    def leaf_below(self, message_id: int) -> int:
        """Return the end of the branch that goes through `message_id` and, from there on, the newest children."""
        while children := self._children.get(message_id):
            message_id = children[-1]
        return message_id

    def below(self, message_id: int) -> tuple[int, ...]:
        """Return the ids of a message and of all that was said after it, in every branch."""
        found = [self._messages[message_id].id]
        for parent_id in found:
            found += self._children.get(parent_id, ())
        return tuple(found)

    def beside(self, message_id: int, n_steps: int) -> int | None:
        """Return the leaf to show instead when a person goes `n_steps` to the right of a message (left: negative), None
        where there is no such version."""
        versions = self.siblings(message_id)
        index = versions.index(message_id) + n_steps
        return self.leaf_below(versions[index]) if 0 <= index < len(versions) else None
