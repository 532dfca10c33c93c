"""What somebody said in a chat, and its place in the tree of branches.

Pure values: they know nothing of how they are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, get_args

__all__ = ["ROLES", "Attachment", "Draft", "Message", "Role", "Scalar", "State", "Utterance"]

Role = Literal["system", "user", "assistant", "tool"]
ROLES: frozenset[str] = frozenset(get_args(Role))
Scalar = str | int | float | bool


class State(Enum):
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
class Utterance:
    """What was said: by whom, when (`created_ms` since 1970, UTC), by which model and at what cost.

    `stats` are the figures of an answer by the names that the client gives them.
    """

    role: Role
    content: str
    reasoning: str = ""
    attachments: tuple[Attachment, ...] = ()
    model: str = ""
    stats: Mapping[str, Scalar] = field(default_factory=dict)
    state: State = State.FINISHED
    created_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Utterance):
    """An utterance in a chat. Messages with one parent are siblings: the versions of one turn, in the order of ids."""

    id: int
    parent_id: int | None
