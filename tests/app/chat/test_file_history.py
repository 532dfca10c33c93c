"""What tools replaced in files stays while a chat can restore it, and goes with the chat."""

from __future__ import annotations

import os
from pathlib import Path

from app.chat.conversation import MessageContent
from app.chat.store.chat_store import ChatStore
from app.chat.store.tables import PURGE_AFTER_MS
from app.tools.file_access import NO_FILE
from app.tools.file_history import FOLDER_NAME
from app.tools.tool import FileChange, ToolOutcome, ToolResult


def _change(store: ChatStore, path: Path, content: bytes) -> FileChange:
    change = store.file_history.prepare(path, NO_FILE, content)
    store.file_history.write(change, NO_FILE, content)
    return change


def _chat_with(store: ChatStore, change: FileChange) -> int:
    chat = store.chats.create()
    result = ToolResult(call_id="1", tool="write_file", outcome=ToolOutcome.DONE, changes=(change,))
    store.messages.add(chat.id, None, MessageContent(role="tool", content="Wrote.", result=result))
    return chat.id


def test_the_contents_of_a_purged_chat_go_and_those_of_others_stay(
    store: ChatStore, tmp_path: Path, monkeypatch
) -> None:
    changes = [_change(store, tmp_path / name, name.encode()) for name in ("kept", "purged")]
    _, doomed = (_chat_with(store, change) for change in changes)
    for path in (tmp_path / FOLDER_NAME).glob("??/*"):
        os.utime(path, (0, 0))
    assert store.messages.contents_of_changes() == {change.after for change in changes}
    store.chats.delete(doomed)
    assert store.purge_deleted() == 0
    assert store.messages.contents_of_changes() == {change.after for change in changes}, "it can be restored"
    monkeypatch.setattr("app.chat.store.chat_store.now_ms", lambda: (1 << 50) + PURGE_AFTER_MS)
    assert store.purge_deleted() == 1
    assert store.messages.contents_of_changes() == {changes[0].after}
    assert [path.read_bytes() for path in (tmp_path / FOLDER_NAME).glob("??/*")] == [b"kept"]
