"""localllm's own format, which imports without loss: a JSON object with format and version.

Owns its keys. Every branch, statistic and setting is kept; newer versions are rejected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from app.chat.conversation import (
    ROLES,
    Attachment,
    Chat,
    ChatSettings,
    Message,
    MessageContent,
    MessageState,
    Scalar,
    Transcript,
)
from app.chat.formats.json_reader import FormatError, ImportedChat, JsonField, SkippedItem, TreeNode, import_tree

__all__ = ["is_localllm", "localllm_json", "read_localllm"]

_FORMAT = "localllm-chat"
_VERSION = 1


def localllm_json(transcripts: Iterable[Transcript]) -> Iterator[str]:
    """Yield, in pieces, a JSON list of whole chats, one per line; ASCII, so that it is safe in a terminal."""
    separator = "[\n"
    for transcript in transcripts:
        yield separator + json.dumps(_exported(transcript))
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def is_localllm(chat: JsonField) -> bool:
    """Return whether localllm exported this chat."""
    return chat.at("format").value == _FORMAT


def read_localllm(chat: JsonField) -> ImportedChat:
    """Return the chat. Raises FormatError for a newer version or an invalid value."""
    if chat.at("version").value != _VERSION:
        raise FormatError(chat.at("version").place, "is not supported: update localllm")
    skipped: list[SkippedItem] = []
    nodes = {_key(message.at("id")): _node(message) for message in chat.at("messages").items()}
    header = Chat(
        id=1,
        title=chat.at("title").text(),
        model=chat.at("model").text(),
        created_ms=chat.at("created_ms").moment_ms(),
        updated_ms=chat.at("updated_ms").moment_ms(),
        is_pinned=chat.at("is_pinned").flag(),
        is_archived=chat.at("is_archived").flag(),
        settings=ChatSettings(chat.at("settings").at("system").text(), _scalars(chat.at("settings").at("options"))),
    )
    transcript, unreached = import_tree(header, nodes, _key(chat.at("leaf_id")), chat.place)
    skipped += [SkippedItem(f"{chat.place}, message {key}", "belongs to no branch") for key in unreached]
    return ImportedChat(transcript, tuple(skipped))


def _exported(transcript: Transcript) -> dict[str, object]:
    chat = asdict(transcript.chat)
    messages = [_exported_message(message) for message in transcript.messages]
    return {"format": _FORMAT, "version": _VERSION, **chat, "messages": messages}


def _exported_message(message: Message) -> dict[str, object]:
    return {**asdict(message), "state": message.state.value}


def _key(number: JsonField) -> str:
    """Return an id as a node's key; empty if not given."""
    if isinstance(number.value, int | None):
        return "" if number.value is None else str(number.value)
    raise FormatError(number.place, "is not an id")


def _node(message: JsonField) -> TreeNode:
    role, state = message.at("role").text(), message.at("state").text()
    if role not in ROLES:
        raise FormatError(message.at("role").place, f"is none of {', '.join(sorted(ROLES))}")
    content = MessageContent(
        role=role,  # type: ignore[arg-type]  # one of ROLES
        content=message.at("content").text(),
        reasoning=message.at("reasoning").text(),
        attachments=tuple(_attachment(attachment) for attachment in message.at("attachments").items()),
        model=message.at("model").text(),
        stats=_scalars(message.at("stats")),
        state=MessageState.PARTIAL if state == MessageState.PARTIAL.value else MessageState.FINISHED,
        created_ms=message.at("created_ms").moment_ms(),
    )
    return TreeNode(_key(message.at("parent_id")) or None, content)


def _attachment(attachment: JsonField) -> Attachment:
    name, content = attachment.at("name").text(), attachment.at("content").text()
    return Attachment(name, content, attachment.at("media_type").text())


def _scalars(fields: JsonField) -> dict[str, Scalar]:
    scalars: dict[str, Scalar] = {}
    for name, field in fields.entries():
        if not isinstance(field.value, Scalar):
            raise FormatError(field.place, "is neither text, number nor boolean")
        scalars[name] = field.value
    return scalars
