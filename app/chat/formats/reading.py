"""What came of reading one chat of a file.

Pure values, shared by every reader.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.chat.chat import Chat, ChatSettings, Transcript
from app.chat.formats.field import UnfitError
from app.chat.message import Message
from app.chat.text import provisional_title

__all__ = ["Header", "LeftOut", "Reading", "reading"]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something in a file that was not taken in: where it is, and why."""

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class Reading:
    """A chat that can be kept, and what was left out of it."""

    transcript: Transcript
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says of a chat beside its messages. Moments may be 0 and texts empty: unknown."""

    title: str = ""
    model: str = ""
    system: str = ""
    created_ms: int = 0
    updated_ms: int = 0
    is_pinned: bool = False
    is_archived: bool = False


def reading(
    header: Header, messages: tuple[Message, ...], leaf_id: int | None, place: str, left_out: list[LeftOut]
) -> Reading:
    """Return the chat of `header` and `messages`, what is unknown of it taken from the messages.

    Raises UnfitError where there is no message at all.
    """
    if not messages:
        raise UnfitError(place, "has no message that could be kept")
    moments = [message.created_ms for message in messages if message.created_ms]
    created_ms = header.created_ms or min(moments, default=0)
    chat = Chat(
        id=1,
        title=" ".join(header.title.split()) or provisional_title(messages[0].content),
        created_ms=created_ms,
        updated_ms=header.updated_ms or max(moments, default=created_ms),
        is_pinned=header.is_pinned,
        is_archived=header.is_archived,
        model=header.model or next((message.model for message in reversed(messages) if message.model), ""),
        settings=ChatSettings(header.system),
        leaf_id=leaf_id,
    )
    return Reading(Transcript(chat, messages), tuple(left_out))
