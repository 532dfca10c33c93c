"""Conversion between rows of the tables and values.

Owns the columns and the JSON in them. Only localllm writes rows, so an invalid one is a bug.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from app.chat.conversation import Attachment, Chat, ChatSettings, MediaFile, Message, MessageContent, MessageState
from app.chat.database import storable
from app.protocol.chat import ToolCall
from app.protocol.codec import decode, encode
from app.tools.approval import NO_TOOL_SETTINGS
from app.tools.result import ToolResult

CHAT_COLUMNS = (
    "chats.id, chats.title, chats.created_ms, chats.updated_ms, chats.is_pinned, chats.is_archived, chats.model,"
    " chats.settings, chats.leaf_id"
)


def insert(connection: sqlite3.Connection, table: str, columns: Mapping[str, object]) -> int:
    """Insert a row within the caller's transaction and return its id."""
    names, marks = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    made = connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", columns)  # noqa: S608  (names of ours)
    assert made.lastrowid is not None
    return made.lastrowid


def chat_of(row: sqlite3.Row) -> Chat:
    """Return the chat of a row that has at least CHAT_COLUMNS."""
    return Chat(
        id=row["id"],
        title=row["title"],
        created_ms=row["created_ms"],
        updated_ms=row["updated_ms"],
        is_pinned=bool(row["is_pinned"]),
        is_archived=bool(row["is_archived"]),
        model=row["model"],
        settings=decode(ChatSettings, json.loads(row["settings"])),
        leaf_id=row["leaf_id"],
    )


def message_of(row: sqlite3.Row) -> Message:
    """Return the message of a row of the table."""
    return Message(
        id=row["id"],
        parent_id=row["parent_id"],
        role=row["role"],
        content=row["content"],
        reasoning=row["reasoning"],
        attachments=attachments_of(row["attachments"]),
        model=row["model"],
        stats=json.loads(row["stats"]),
        state=MessageState(row["state"]),
        created_ms=row["created_ms"],
        calls=tuple(decode(ToolCall, call) for call in json.loads(row["calls"])),
        result=decode(ToolResult, json.loads(row["result"])) if row["result"] else None,
        n_kept=row["n_kept"],
    )


def attachments_of(text: str) -> tuple[Attachment, ...]:
    """Return the attachments of a column of them."""
    return tuple(_attachment(**fields) for fields in json.loads(text))


def _attachment(*, media: Iterable[Mapping[str, Any]] = (), **fields: str) -> Attachment:
    return Attachment(**fields, media=tuple(MediaFile(**file) for file in media))


def attachments_json(attachments: Iterable[Attachment]) -> str:
    """Return attachments as a column stores them."""
    return _json([asdict(attachment) for attachment in attachments])


def calls_json(calls: Iterable[ToolCall]) -> str:
    """Return calls as a column stores them."""
    return _json(encode(list(calls)))


def result_json(result: ToolResult | None) -> str:
    """Return the result of a call as a column stores it, empty for none."""
    return "" if result is None else _json(encode(result))


def chat_columns(chat: Chat, now_ms: int) -> Mapping[str, str | int]:
    """Return the columns of a chat but its leaf, which needs its messages. Unknown times are `now_ms`."""
    return {
        "title": storable(chat.title),
        "created_ms": chat.created_ms or now_ms,
        "updated_ms": chat.updated_ms or now_ms,
        "is_pinned": chat.is_pinned,
        "is_archived": chat.is_archived,
        "model": storable(chat.model),
        "settings": settings_json(chat.settings),
    }


def settings_json(settings: ChatSettings) -> str:
    """Return settings as a column stores them."""
    tools = {} if settings.tools == NO_TOOL_SETTINGS else {"tools": encode(settings.tools)}
    return _json({"system": settings.system, "options": dict(settings.options), **tools})


def message_columns(message: MessageContent) -> Mapping[str, str | int]:
    """Return the columns of a message."""
    return {
        "role": message.role,
        "content": storable(message.content),
        "reasoning": storable(message.reasoning),
        "attachments": attachments_json(message.attachments),
        "model": storable(message.model),
        "stats": _json(dict(message.stats)),
        "state": message.state.value,
        "created_ms": message.created_ms,
        "calls": calls_json(message.calls),
        "result": result_json(message.result),
        "n_kept": message.n_kept,
    }


def _json(value: object) -> str:
    return storable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
