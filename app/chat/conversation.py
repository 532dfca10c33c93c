"""What somebody said in a chat, and its place in the tree of branches.

Pure values: they know nothing of how they are kept.

The tree of a chat's branches: what is shown, what lies beside it, where a step to the left or right leads.

Pure. An edited question is a sibling of the question, an answer made again a sibling of the answer.

A chat, and a chat with everything that was said in it.

Pure values: they know nothing of how they are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, get_args

__all__ = [
    "ROLES",
    "Attachment",
    "Chat",
    "ChatSettings",
    "Draft",
    "Message",
    "MessageContent",
    "MessageState",
    "MessageTree",
    "Role",
    "Scalar",
    "Transcript",
]

Role = Literal["system", "user", "assistant", "tool"]
ROLES: frozenset[str] = frozenset(get_args(Role))
Scalar = str | int | float | bool


class MessageState(Enum):
    """Whether a message is all that its author meant to say."""

    FINISHED = "finished"
    PARTIAL = "partial"  # being written, stopped, or cut off when its process died


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text that goes with a message: a file, or something long that was pasted."""

    name: str
    content: str
    media_type: str = "text/plain"


@dataclass(frozen=True, slots=True)
class Draft:
    """What is typed and not yet sent, and what is to go with it."""

    text: str = ""
    attachments: tuple[Attachment, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.attachments)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContent:
    """What was said: by whom, when (`created_ms` since 1970, UTC), by which model and at what cost.

    `stats` are the figures of an answer by the names that the client gives them.
    """

    role: Role
    content: str
    reasoning: str = ""
    attachments: tuple[Attachment, ...] = ()
    model: str = ""
    stats: Mapping[str, Scalar] = field(default_factory=dict)
    state: MessageState = MessageState.FINISHED
    created_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(MessageContent):
    """An utterance in a chat. Messages with one parent are siblings: the versions of one turn, in the order of ids."""

    id: int
    parent_id: int | None


class MessageTree:
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


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """How this chat is answered: its system prompt, and options of the sampler and the context by their names."""

    system: str = ""
    options: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """One conversation. Times are milliseconds since 1970, UTC; `updated_ms` is when something was last said.

    `leaf_id` is the message at the end of the branch that is shown, None while nothing is said.
    """

    id: int
    title: str
    created_ms: int
    updated_ms: int
    is_pinned: bool = False
    is_archived: bool = False
    model: str = ""
    settings: ChatSettings = field(default_factory=ChatSettings)
    leaf_id: int | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """A chat and all its messages, every branch, parents before children. One that was not stored has ids of its own,
    from 1 on."""

    chat: Chat
    messages: tuple[Message, ...]

    @property
    def branch(self) -> tuple[Message, ...]:
        """The messages that are shown, from the first to the leaf."""
        return MessageTree(self.messages).path(self.chat.leaf_id)
