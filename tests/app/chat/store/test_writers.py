"""A partial message whose window lives is being written; one whose window ended or was killed was stopped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from app.chat.conversation import Message, MessageContent, MessageState
from app.chat.store.chat_store import ChatStore
from app.chat.store.writers import FOLDER_NAME
from app.common.database import Database
from quantizer.system.errors import StorageError

BEGUN = MessageContent(role="assistant", content="Half", state=MessageState.PARTIAL)
WINDOW = """
import sys
from pathlib import Path
from app.chat.conversation import MessageContent, MessageState
from app.chat.store.chat_store import ChatStore

store = ChatStore(Path(sys.argv[1]))
chat = store.chats.create(title="Soup")
begun = MessageContent(role="assistant", content="Half", state=MessageState.PARTIAL)
message = store.messages.add(chat.id, None, begun, store.writers.window)
print(chat.id, message.id, flush=True)
if sys.stdin.readline() == "end":
    store.close()
"""


def _begin(store: ChatStore) -> tuple[int, Message]:
    chat = store.chats.create(title="Soup")
    return chat.id, store.messages.add(chat.id, None, BEGUN, store.writers.window)


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["by itself", "by a kill"])
def test_a_message_of_another_process_is_being_written_until_that_ends(tmp_path: Path, ends: str) -> None:
    command = [sys.executable, "-c", WINDOW, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as window,
        ChatStore(tmp_path) as store,
    ):
        assert window.stdout is not None
        chat_id, message_id = map(int, window.stdout.readline().split())
        assert store.writers.of_chat(chat_id) == {message_id}
        assert store.writers.chats() == {chat_id}
        assert store.transcripts.read(chat_id).written == {message_id}
        if ends == "by a kill":
            window.kill()
            window.wait()
        else:
            window.communicate("end")
        assert store.writers.of_chat(chat_id) == frozenset()
        assert store.writers.chats() == frozenset()
        assert store.transcripts.read(chat_id).written == frozenset()


@pytest.mark.slow
def test_what_killed_windows_left_goes_with_the_next_that_answers(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WINDOW, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as window:
        assert window.stdout is not None
        chat_id = int(window.stdout.readline().split()[0])
        window.kill()
    (tmp_path / FOLDER_NAME / "stray.lock").touch()
    with ChatStore(tmp_path) as store:
        own_id, own = _begin(store)
        assert [path.stem for path in (tmp_path / FOLDER_NAME).iterdir()] == [store.writers.window]
        assert store.writers.of_chat(chat_id) == frozenset()
        assert store.writers.of_chat(own_id, with_own=True) == {own.id}
    assert list((tmp_path / FOLDER_NAME).iterdir()) == []


def _removed(store: ChatStore, chat_id: int) -> None:
    store.writers.mark(chat_id, None)


def _closed(store: ChatStore, _chat_id: int) -> None:
    store.close()


@pytest.mark.parametrize("end", [_removed, _closed])
def test_a_window_is_no_other_to_itself_and_its_marks_end_with_it(
    tmp_path: Path, end: Callable[[ChatStore, int], None]
) -> None:
    with ChatStore(tmp_path) as store, ChatStore(tmp_path) as other:
        chat_id, message = _begin(store)
        assert (store.writers.of_chat(chat_id), other.writers.of_chat(chat_id)) == (frozenset(), {message.id})
        following = store.messages.add(chat_id, message.id, BEGUN, store.writers.window)
        assert other.writers.of_chat(chat_id) == {following.id}
        end(store, chat_id)
        assert other.writers.of_chat(chat_id) == frozenset()


def test_a_copy_of_a_message_that_is_being_written_was_stopped(tmp_path: Path) -> None:
    with ChatStore(tmp_path) as store, ChatStore(tmp_path) as other:
        chat_id, _ = _begin(store)
        copy = other.transcripts.duplicate(chat_id)
        assert other.transcripts.read(copy.id).written == frozenset()


def test_a_purged_chat_takes_its_mark_with_it(tmp_path: Path) -> None:
    with ChatStore(tmp_path) as store, ChatStore(tmp_path) as other:
        chat_id, _ = _begin(store)
        store.chats.delete(chat_id)
        store.chats.purge_deleted(1 << 62)
        assert other.writers.chats() == frozenset()


def test_nothing_is_locked_where_no_answer_was_written(tmp_path: Path) -> None:
    with ChatStore(tmp_path) as store:
        chat = store.chats.create()
        store.messages.add(chat.id, None, BEGUN)
        store.writers.mark(chat.id, None)
        assert store.writers.chats() == frozenset()
    assert not (tmp_path / FOLDER_NAME).exists()


def test_a_window_closes_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ChatStore(tmp_path)
    chat_id, message = _begin(store)

    def full(_database: Database) -> NoReturn:
        raise StorageError("The disk is full.", "Free some space and try again.")

    with monkeypatch.context() as patched:
        patched.setattr(Database, "writing", full)
        store.close()
    with ChatStore(tmp_path) as later:
        assert later.transcripts.read(chat_id).written == frozenset()
        assert later.messages.of(chat_id) == (message,)
