"""The command table of the history screen.

Owns ids, keys and texts. The implementations are methods of the screen, typed as `HistoryActions`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from tui.commands import Command, CommandTable

__all__ = ["HISTORY_COMMANDS", "HistoryActions"]


class HistoryActions(Protocol):
    """The methods of the screen that its commands call."""

    def go_to_search(self) -> None: ...

    def rename_chat(self) -> None: ...

    def pin_chat(self) -> Awaitable[None]: ...

    def duplicate_chat(self) -> Awaitable[None]: ...

    def archive_chat(self) -> Awaitable[None]: ...

    def delete_chat(self) -> Awaitable[None]: ...

    def restore_chat(self) -> Awaitable[None]: ...

    def export_chat(self) -> None: ...

    def import_chats(self) -> None: ...


HISTORY_COMMANDS: CommandTable[Any] = CommandTable(
    (
        Command[HistoryActions](
            id="chats-search",
            title="Search",
            tooltip="Search titles and messages; Down goes to the results",
            keys="slash,ctrl+f",  # with priority: the next key is text; check_action protects typing
            is_shown=True,
            run=lambda chats, _: chats.go_to_search(),
        ),
        Command[HistoryActions](
            id="chats-rename",
            title="Rename",
            tooltip="Rename the chat",
            keys="r",
            has_priority=False,
            is_shown=True,
            run=lambda chats, _: chats.rename_chat(),
        ),
        Command[HistoryActions](
            id="chats-pin",
            title="Pin",
            tooltip="Pin the chat to the top, or unpin it",
            keys="p",
            has_priority=False,
            is_shown=True,
            run=lambda chats, _: chats.pin_chat(),
        ),
        Command[HistoryActions](
            id="chats-archive",
            title="Archive",
            tooltip="Archive the chat, or unarchive it",
            keys="a",
            has_priority=False,
            is_shown=True,
            run=lambda chats, _: chats.archive_chat(),
        ),
        Command[HistoryActions](
            id="chats-delete",
            title="Delete",
            tooltip="Delete the chat; it can be restored for a week",
            keys="delete,x",
            has_priority=False,
            is_shown=True,
            run=lambda chats, _: chats.delete_chat(),
        ),
        Command[HistoryActions](
            id="chats-undo",
            title="Undo",
            tooltip="Restore the last deleted chat",
            keys="u",
            has_priority=False,
            is_shown=True,
            run=lambda chats, _: chats.restore_chat(),
        ),
        Command[HistoryActions](
            id="chats-duplicate",
            title="Duplicate",
            tooltip="Copy the chat with all its branches",
            keys="d",
            has_priority=False,
            run=lambda chats, _: chats.duplicate_chat(),
        ),
        Command[HistoryActions](
            id="chats-export",
            title="Export",
            tooltip="Export the chat; the file extension selects Markdown, JSON or HTML",
            keys="e",
            has_priority=False,
            run=lambda chats, _: chats.export_chat(),
        ),
        Command[HistoryActions](
            id="chats-import",
            title="Import",
            tooltip="Import chats from a JSON file of localllm, ChatGPT, Open WebUI or Ollama",
            keys="i",
            has_priority=False,
            run=lambda chats, _: chats.import_chats(),
        ),
    )
)
