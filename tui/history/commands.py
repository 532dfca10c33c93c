"""The command table of the history screen: ids, keys and texts."""

from __future__ import annotations

from tui.commands import Command, CommandTable, list_command

__all__ = ["HISTORY_COMMANDS"]

HISTORY_COMMANDS = CommandTable(
    (
        Command(
            "chats-search",
            "Search",
            "Search titles and messages; Down goes to the results",
            "go_to_search",
            keys="slash,ctrl+f",  # with priority: the next key is text; check_action protects typing
            is_shown=True,
        ),
        list_command("chats-rename", "Rename", "r", "Rename the chat", "rename_chat"),
        list_command("chats-pin", "Pin", "p", "Pin the chat to the top, or unpin it", "pin_chat"),
        list_command("chats-archive", "Archive", "a", "Archive the chat, or unarchive it", "archive_chat"),
        list_command(
            "chats-delete", "Delete", "delete,x", "Delete the chat; it can be restored for a week", "delete_chat"
        ),
        list_command("chats-undo", "Undo", "u", "Restore the last deleted chat", "restore_chat"),
        Command(
            "chats-duplicate",
            "Duplicate",
            "Copy the chat with all its branches",
            "duplicate_chat",
            keys="d",
            has_priority=False,
        ),
        Command(
            "chats-export",
            "Export",
            "Export the chat; the file extension selects Markdown, JSON or HTML",
            "export_chat",
            keys="e",
            has_priority=False,
        ),
        Command(
            "chats-import",
            "Import",
            "Import chats from a JSON file of localllm, ChatGPT, Open WebUI or Ollama",
            "import_chats",
            keys="i",
            has_priority=False,
        ),
    )
)
