"""Readers for untrusted JSON, and for a tree of messages as other apps write it. Pure.

Owns the expected types, the errors about a value at its place, and the transcript of a tree, in time linear in its
nodes. Nodes without a message are skipped: their children follow their parent. Nodes that no root reaches, such as a
cycle, are reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.chat.conversation import Chat, Message, MessageContent, Transcript, provisional_title

_LAST_MS = 253_402_300_800_000  # the year 10000
_LEAST_MS = 10**11  # as seconds that would be the year 5138
_SHOWN_CHARACTERS = 40
_LAST_NUMBER = 1 << 53


class FormatError(Exception):
    """A value of the wrong type at its place."""

    def __init__(self, place: str, fault: str) -> None:
        super().__init__(f"{place} {fault}")
        self.place = place
        self.fault = fault


@dataclass(frozen=True, slots=True)
class JsonField:
    """A value and its place. A missing or null value is a field too, with `is_given` False."""

    value: object
    place: str

    @property
    def is_given(self) -> bool:
        return self.value is not None

    def at(self, key: str) -> JsonField:
        """Return a field of an object; not given if this is not an object or has no such field."""
        value = self.value.get(key) if isinstance(self.value, dict) else None
        return JsonField(value, f"{self.place}.{_short(key)}")

    def text(self) -> str:
        """Return a text, empty if not given. Raises FormatError for another type."""
        if isinstance(self.value, str):
            return self.value
        if self.value is None:
            return ""
        raise FormatError(self.place, "is not a text")

    def flag(self) -> bool:
        """Return a boolean, False if not given. Raises FormatError for another type."""
        if isinstance(self.value, bool | None):
            return bool(self.value)
        raise FormatError(self.place, "is not a boolean")

    def number(self) -> int | float:
        """Return a number of at least 0, 0 if not given. Raises FormatError for another type or one out of range."""
        if self.value is None:
            return 0
        if isinstance(self.value, int | float) and not isinstance(self.value, bool) and 0 <= self.value < _LAST_NUMBER:
            return self.value
        raise FormatError(self.place, "is not a number from 0 on")

    def moment_ms(self) -> int:
        """Return a time in milliseconds since 1970, 0 if not given; the size tells seconds from milliseconds.

        Raises FormatError for another type or a time out of range.
        """
        if self.value is None:
            return 0
        if isinstance(self.value, int | float) and not isinstance(self.value, bool) and 0 <= self.value < _LAST_MS:
            return int(self.value if self.value >= _LEAST_MS else self.value * 1000)
        raise FormatError(self.place, "is not a time")

    def items(self) -> Iterator[JsonField]:
        """Yield the items of a list, none if not given. Raises FormatError for another type."""
        if not isinstance(self.value, list | None):
            raise FormatError(self.place, "is not a list")
        for index, item in enumerate(self.value or ()):
            yield JsonField(item, f"{self.place}[{index}]")

    def entries(self) -> Iterator[tuple[str, JsonField]]:
        """Yield the fields of an object by name, none if not given. Raises FormatError for another type."""
        if not isinstance(self.value, dict | None):
            raise FormatError(self.place, "is not an object")
        for key in self.value or ():
            yield key, self.at(key)


def _short(key: str) -> str:
    return key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}…"


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """Something in a file that was not imported: its place, and why."""

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class ImportedChat:
    """A chat to store, what was skipped in it, and the contents of its pictures and sounds by SHA-256."""

    transcript: Transcript
    skipped: tuple[SkippedItem, ...]
    contents: Mapping[str, bytes] = field(default_factory=dict)


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
