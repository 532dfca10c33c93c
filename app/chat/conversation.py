"""The values of a conversation: messages, the tree of their branches, chats and transcripts. Pure.

An edited question is a sibling of the question, a regenerated answer a sibling of the answer. Does not store anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, Literal, get_args

from app.protocol.chat import Source, ToolCall
from app.tools.approval import NO_TOOL_SETTINGS, ToolSettings
from app.tools.tool import ToolResult
from quantizer.system.errors import StorageError

Role = Literal["system", "user", "assistant", "tool", "summary"]
ROLES: frozenset[str] = frozenset(get_args(Role))
Scalar = str | int | float | bool
_TITLE_CHARACTERS = 60


class WrittenElsewhereError(StorageError):
    """Another window goes on with what was to be taken away."""

    def __init__(self) -> None:
        super().__init__("Another window is answering here.", "Wait until it has ended, or press Esc there.")


class MessageState(Enum):
    """The completeness of a message."""

    FINISHED = "finished"
    PARTIAL = "partial"  # being written, stopped, or cut off when its process died


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A picture or sound: the SHA-256 of its content, by which a store has it, its MIME type and its size in bytes."""

    sha256: str
    mime_type: str
    n_bytes: int

    @property
    def is_sound(self) -> bool:
        return self.mime_type.startswith("audio/")


@dataclass(frozen=True, slots=True)
class Attachment:
    """What is attached to a message: a text (a file, a long paste, what a document says), or pictures and sounds.
    `content` is the text that a model reads, empty for pictures and sounds. `media_type` is that of the file; `detail`
    says how much it is: "12 pages", "640 × 480, 120 kB". Of a text that `is_searched`, passages that fit each question
    are sent instead of all of it."""

    name: str
    content: str
    media_type: str = "text/plain"
    detail: str = ""
    media: tuple[MediaFile, ...] = ()
    is_searched: bool = False

    @property
    def sent_content(self) -> str:
        """The text that is sent wherever the attachment stands."""
        return "" if self.is_searched else self.content

    @property
    def label(self) -> str:
        """The name, how much it is, and whether it is searched, not yet safe for a terminal: "paper.pdf, 12 pages"."""
        searched = ", searched" if self.is_searched else ""
        return f"{self.name}, {self.detail or f'{len(self.content):,} characters'}{searched}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContent:
    """A message without its place in a chat, also a question that is not sent yet. `created_ms` is since 1970, UTC; 0
    is unknown. `stats` are the statistics of an answer under the client's names, `calls` the tools that it calls. A
    message of role "tool" answers one of them: `content` is what the model reads, `attachments` the pictures and sounds
    beside it, `result` how the call ended. A summary stands for what was before it on its branch, but for the last
    `n_kept` messages there. `sources` are sent with a question: what was found for it in the person's folders."""

    role: Role = "user"
    content: str = ""
    reasoning: str = ""
    attachments: tuple[Attachment, ...] = ()
    model: str = ""
    stats: Mapping[str, Scalar] = field(default_factory=dict)
    state: MessageState = MessageState.FINISHED
    created_ms: int = 0
    calls: tuple[ToolCall, ...] = ()
    result: ToolResult | None = None
    n_kept: int = 0
    sources: tuple[Source, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send: no text and no attachment."""
        return not (self.content or self.attachments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(MessageContent):
    """A message as a chat stores it; `app.protocol.chat.Message` is what a request sends of it. Messages with one
    parent are siblings: the versions of one turn, in the order of ids."""

    id: int
    parent_id: int | None


def placed(content: MessageContent, message_id: int, parent_id: int | None) -> Message:
    values = {each.name: getattr(content, each.name) for each in fields(MessageContent)}
    return Message(id=message_id, parent_id=parent_id, **values)


class MessageTree:
    """The messages of one chat by their ids. Raises KeyError for an unknown id."""

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
        """Return the ids of all versions of a message, including itself, oldest first."""
        return tuple(self._children[self._messages[message_id].parent_id])

    def leaf_below(self, message_id: int) -> int:
        """Return the end of the branch that goes through `message_id` and, from there on, the newest children."""
        while children := self._children.get(message_id):
            message_id = children[-1]
        return message_id

    def below(self, message_id: int) -> tuple[int, ...]:
        """Return the ids of a message and of all its descendants."""
        found = [self._messages[message_id].id]
        for parent_id in found:
            found += self._children.get(parent_id, ())
        return tuple(found)

    def beside(self, message_id: int, n_steps: int) -> int | None:
        """Return the leaf of the version `n_steps` to the right of a message (left: negative), None without one."""
        versions = self.siblings(message_id)
        index = versions.index(message_id) + n_steps
        return self.leaf_below(versions[index]) if 0 <= index < len(versions) else None


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The settings of a chat: its system prompt, options of the sampler and the context by name, and its tools."""

    system: str = ""
    options: Mapping[str, Scalar] = field(default_factory=dict)
    tools: ToolSettings = NO_TOOL_SETTINGS

    def overridden(self, given: ChatSettings) -> ChatSettings:
        """Return these settings with the system prompt and the options that are `given` in place of their own."""
        return replace(self, system=given.system or self.system, options={**self.options, **given.options})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """One conversation. Times are milliseconds since 1970, UTC; `updated_ms` is that of the last message, 0 is unknown.
    `leaf_id` is the last message of the shown branch, None in an empty chat."""

    id: int
    title: str = ""
    created_ms: int = 0
    updated_ms: int = 0
    is_pinned: bool = False
    is_archived: bool = False
    model: str = ""
    settings: ChatSettings = field(default_factory=ChatSettings)
    leaf_id: int | None = None

    @property
    def prompt_cache_key(self) -> str:
        """What requests call this chat, so that its prefixes are removed with it. No other chat has it, deleted ones
        included."""
        return f"chat-{self.id}-{self.created_ms}"


@dataclass(frozen=True, slots=True)
class Transcript:
    """A chat and all its messages, every branch, parents before children. Before it is stored its ids begin at 1.
    `written` are the messages after which a window goes on now."""

    chat: Chat
    messages: tuple[Message, ...]
    written: frozenset[int] = frozenset()

    @property
    def branch(self) -> tuple[Message, ...]:
        """The messages of the shown branch, from the first to the leaf."""
        return MessageTree(self.messages).path(self.chat.leaf_id)


def searched_texts(branch: Iterable[MessageContent]) -> tuple[Attachment, ...]:
    """Return the attached texts of a branch that are searched for each question, each once."""
    attached = (each for message in branch for each in message.attachments if each.is_searched and each.content)
    return tuple(dict.fromkeys(attached))


def cited_sources(branch: Iterable[Message]) -> dict[int, tuple[Source, ...]]:
    """Return the passages that answers of a branch were given, by the answer's id: those sent with its question, then
    what its calls found, each once. An answer that calls tools is followed by the one that has them."""
    cited: dict[int, tuple[Source, ...]] = {}
    found: dict[Source, None] = {}
    for message in branch:
        if message.role == "user":
            found = {}
        found |= dict.fromkeys((*message.sources, *(message.result.sources if message.result else ())))
        if message.role == "assistant" and found and not message.calls:
            cited[message.id] = tuple(found)
    return cited


def provisional_title(text: str) -> str:
    """Return the first title of a chat that begins with `text`: at most 60 characters."""
    words = " ".join(text.split())
    return words if len(words) <= _TITLE_CHARACTERS else f"{words[: _TITLE_CHARACTERS - 1].rstrip()}…"


def arguments_of(call: ToolCall) -> Mapping[str, Any] | None:
    """Return the arguments of a call by name; None where its text is no JSON object."""
    try:
        arguments = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def call_text(call: ToolCall) -> str:
    """Return the name of a call's tool and its arguments, a line each: "path: notes.txt"; not safe for a terminal.
    Texts are without the escapes of JSON, values in lists and objects each have a line."""
    arguments = arguments_of(call)
    lines = [call.arguments] if arguments is None else [f"{name}: {value}" for name, value in _leaves(arguments)]
    return "\n".join([call.name, *lines])


def _leaves(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the values that are neither list nor object, each with the name of what has it."""
    waiting = [("", arguments)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(key, value[key]) for key in reversed(value)]
        elif isinstance(value, list):
            waiting += [(name, item) for item in reversed(value)]
        else:
            yield name, value if isinstance(value, str) else json.dumps(value)
