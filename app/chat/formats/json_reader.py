"""A value of a JSON file and its place in it: what every reader of a foreign format asks.

Owns the types that are expected and the words for what is not as expected.

What came of reading one chat of a file.

Pure values, shared by every reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.chat.conversation import Chat, ChatSettings, Message, Transcript
from app.chat.text import provisional_title

__all__ = ["ChatInfo", "FormatError", "ImportedChat", "JsonField", "SkippedItem", "reading"]

_LAST_MS = 253_402_300_800_000  # the year 10000
_LEAST_MS = 10**11  # as seconds that would be the year 5138
_SHOWN_CHARACTERS = 40


class FormatError(Exception):
    """A value that is not what its place asks for."""

    def __init__(self, place: str, fault: str) -> None:
        super().__init__(f"{place} {fault}")
        self.place = place
        self.fault = fault


@dataclass(frozen=True, slots=True)
class JsonField:
    """A value and where it lies. What is missing or null is a field too: it is `not given`."""

    value: object
    place: str

    @property
    def is_given(self) -> bool:
        return self.value is not None

    def at(self, key: str) -> JsonField:
        """Return the field of an object; not given where this is no object or has no such field."""
        value = self.value.get(key) if isinstance(self.value, dict) else None
        return JsonField(value, f"{self.place}.{_short(key)}")

    def text(self) -> str:
        """Return a text, empty where none is given. Raises FormatError for anything else."""
        if isinstance(self.value, str):
            return self.value
        if self.value is None:
            return ""
        raise FormatError(self.place, "is no text")

    def flag(self) -> bool:
        """Return a truth value, False where none is given. Raises FormatError for anything else."""
        if isinstance(self.value, bool | None):
            return bool(self.value)
        raise FormatError(self.place, "is neither true nor false")

    def moment_ms(self) -> int:
        """Return a moment in milliseconds since 1970, 0 where none is given: seconds and milliseconds are told apart by
        their size. Raises FormatError for what is no moment."""
        if self.value is None:
            return 0
        if isinstance(self.value, int | float) and not isinstance(self.value, bool) and 0 <= self.value < _LAST_MS:
            return int(self.value if self.value >= _LEAST_MS else self.value * 1000)
        raise FormatError(self.place, "is no moment")

    def items(self) -> Iterator[JsonField]:
        """Yield the items of a list, none where it is not given. Raises FormatError for anything else."""
        if not isinstance(self.value, list | None):
            raise FormatError(self.place, "is no list")
        for index, item in enumerate(self.value or ()):
            yield JsonField(item, f"{self.place}[{index}]")

    def entries(self) -> Iterator[tuple[str, JsonField]]:
        """Yield the fields of an object by name, none where it is not given. Raises FormatError for anything else."""
        if not isinstance(self.value, dict | None):
            raise FormatError(self.place, "is no object")
        for key in self.value or ():
            yield key, self.at(key)


def _short(key: str) -> str:
    return key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}…"


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """Something in a file that was not taken in: where it is, and why."""

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class ImportedChat:
    """A chat that can be kept, and what was left out of it."""

    transcript: Transcript
    left_out: tuple[SkippedItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInfo:
    """What a file says of a chat beside its messages. Moments may be 0 and texts empty: unknown."""

    title: str = ""
    model: str = ""
    system: str = ""
    created_ms: int = 0
    updated_ms: int = 0
    is_pinned: bool = False
    is_archived: bool = False


def reading(
    header: ChatInfo, messages: tuple[Message, ...], leaf_id: int | None, place: str, left_out: list[SkippedItem]
) -> ImportedChat:
    """Return the chat of `header` and `messages`, what is unknown of it taken from the messages.

    Raises FormatError where there is no message at all.
    """
    if not messages:
        raise FormatError(place, "has no message that could be kept")
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
    return ImportedChat(Transcript(chat, messages), tuple(left_out))
