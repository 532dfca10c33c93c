"""A chat, and a chat with everything that was said in it.

Pure values: they know nothing of how they are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.chat.message import Message, Scalar
from app.chat.tree import Tree

__all__ = ["Chat", "ChatSettings", "Transcript"]


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
        return Tree(self.messages).path(self.chat.leaf_id)
