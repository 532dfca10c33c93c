"""Reading untrusted JSON: values of the expected types, pictures and sounds, calls of tools, trees of messages. Pure.

The transcript of a tree takes time linear in its nodes. Nodes without a message are skipped: their children follow
their parent. Nodes that no root reaches, such as a cycle, are reported. What a file calls its pictures does not count:
their first bytes do.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from app.chat.attachments.kinds import Form, kind_of
from app.chat.conversation import (
    Attachment,
    Chat,
    MediaFile,
    Message,
    MessageContent,
    Transcript,
    placed,
    provisional_title,
)
from app.protocol.chat import ToolCall
from app.tools.tool import ToolOutcome, ToolResult
from quantizer.system.errors import UserError

_LAST_MS = 253_402_300_800_000  # the year 10000
_LEAST_MS = 10**11  # as seconds that would be the year 5138
_SHOWN_CHARACTERS = 40
_LAST_NUMBER = 1 << 53
_DATA_URL = re.compile(r"data:[\w.+-]{1,40}/[\w.+-]{1,80}(?:;[\w=.+-]{1,80})*;base64,", re.ASCII)


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
        return self._number(_LAST_NUMBER, "is not a number from 0 on")

    def moment_ms(self) -> int:
        """Return a time in milliseconds since 1970, 0 if not given; the size tells seconds from milliseconds. Raises
        FormatError for another type or a time out of range."""
        moment = self._number(_LAST_MS, "is not a time")
        return int(moment if moment >= _LEAST_MS else moment * 1000)

    def _number(self, limit: int, fault: str) -> int | float:
        if self.value is None:
            return 0
        if isinstance(self.value, int | float) and not isinstance(self.value, bool) and 0 <= self.value < limit:
            return self.value
        raise FormatError(self.place, fault)

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


@dataclass(slots=True)
class _Thoughts:
    """Reasoning of a node without a message, and what came `before` it. The first message behind takes it, and no other
    one: a copy for each branch could make a file many times as large."""

    text: str
    before: _Thoughts | None
    is_taken: bool = False

    def take(self) -> str:
        """Return what was not taken yet, from the first to this."""
        texts: list[str] = []
        each: _Thoughts | None = self
        while each is not None and not each.is_taken:
            texts.append(each.text)
            each.is_taken, each = True, each.before
        return "".join(reversed(texts))


def import_tree(
    chat: Chat, nodes: Mapping[str, TreeNode], current: str, place: str
) -> tuple[Transcript, tuple[str, ...]]:
    """Return `chat` with the messages of `nodes`, and the keys of nodes outside the tree. The shown branch ends at the
    node `current`, or at the last message; siblings are in the order of their times. What is empty or 0 in `chat` is
    derived from the messages. Raises FormatError about `place` if there is none."""
    children: dict[str | None, list[str]] = {}
    for key, node in nodes.items():
        children.setdefault(node.parent if node.parent in nodes else None, []).append(key)

    def moment_ms(key: str) -> int:
        message = nodes[key].message
        return message.created_ms if message else 0

    def latest_first(parent: str | None) -> list[str]:
        return sorted(children.get(parent, ()), key=moment_ms)[::-1]

    messages: list[Message] = []
    last_ids: dict[str, int | None] = {}  # of every node reached: the message that it is or follows
    # Keys to visit, each with the message that its own follows, and the reasoning before it. A stack, not recursion: a
    # chat may be deeper than Python calls.
    waiting: list[tuple[str, int | None, _Thoughts | None]] = [(key, None, None) for key in latest_first(None)]
    while waiting:
        key, message_id, thoughts = waiting.pop()
        node = nodes[key]
        if node.reasoning:
            thoughts = _Thoughts(node.reasoning, thoughts)
        if node.message is not None:
            reasoning = (thoughts.take() if thoughts else "") + node.message.reasoning
            parent_id, message_id = message_id, len(messages) + 1
            messages.append(placed(replace(node.message, reasoning=reasoning), message_id, parent_id))
            thoughts = None
        last_ids[key] = message_id
        waiting += [(child, message_id, thoughts) for child in latest_first(key)]
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


ContentOf: TypeAlias = Callable[[MediaFile], bytes]
"""Returns the content of a picture or sound; raises StorageError if it is missing."""


def data_url(file: MediaFile, content: bytes) -> str:
    return f"data:{file.mime_type};base64,{base64.b64encode(content).decode()}"


class ImportedMedia:
    """The pictures and sounds of one imported chat: `contents` by SHA-256, and what was `skipped`."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.skipped: list[SkippedItem] = []

    def attachment(self, field: JsonField, name: str = "") -> tuple[Attachment, ...]:
        """Return the attachment whose content is `field`, a data URL or Base64; none, and note why, for anything else.
        Without a `name` it is numbered. Raises FormatError for a value of another type."""
        file = self.file(field)
        if file is None:
            return ()
        word = "sound" if file.is_sound else "picture"
        name = name or f"{word} {len(self.contents)}"
        return (Attachment(name, "", file.mime_type, f"{max(1, file.n_bytes // 1000):,} kB", (file,)),)

    def file(self, field: JsonField) -> MediaFile | None:
        """Return the picture or sound whose content is `field`; None, and note why, for anything else."""
        text = field.text()
        if text.startswith(("http://", "https://", "file:")):
            self.skipped.append(SkippedItem(field.place, "is a link to a picture or file, which is not fetched"))
            return None
        found = _DATA_URL.match(text)
        try:
            content = base64.b64decode(text[found.end() :] if found else text, validate=True)
        except (binascii.Error, ValueError):
            content = b""
        try:
            kind = kind_of(content, "it")
        except UserError:
            kind = None
        if not content or kind is None or kind.form not in (Form.PICTURE, Form.SOUND):
            self.skipped.append(SkippedItem(field.place, "is no picture or sound in Base64"))
            return None
        file = MediaFile(hashlib.sha256(content).hexdigest(), kind.mime_type, len(content))
        self.contents[file.sha256] = content
        return file


class CallMatcher:
    """Reads the calls of messages in OpenAI's and Ollama's form, in their order, and which call a result answers.
    Ollama's have no ids, and name at most the tool: a result then answers the first such call that has none."""

    def __init__(self) -> None:
        self._waiting: list[ToolCall] = []

    def calls(self, calls: JsonField) -> tuple[ToolCall, ...]:
        """Return the calls of an answer. Raises FormatError."""
        found: dict[str, ToolCall] = {}
        for index, call in enumerate(calls.items()):
            call_id = call.at("id").text()
            call_id = call_id if call_id and call_id not in found else f"call{index:05d}"
            function = call.at("function")
            found[call_id] = ToolCall(call_id, function.at("name").text(), _arguments(function.at("arguments")))
        self._waiting = list(found.values())
        return tuple(found.values())

    def result(self, message: JsonField) -> ToolResult | None:
        """Return the result that a message of role "tool" is, None if no call waits for it. Raises FormatError."""
        call_id = message.at("tool_call_id").text()
        name = message.at("tool_name").text() or message.at("name").text()
        named = [call for call in self._waiting if call_id == call.call_id] or [
            call for call in self._waiting if not call_id and name in ("", call.name)
        ]
        if not named:
            return None
        self._waiting.remove(named[0])
        return ToolResult(call_id=named[0].call_id, tool=named[0].name, title=named[0].name, outcome=ToolOutcome.DONE)


def _arguments(arguments: JsonField) -> str:
    """Return the JSON text of arguments, which Ollama writes as an object."""
    return json.dumps(arguments.value) if isinstance(arguments.value, dict) else arguments.text()
