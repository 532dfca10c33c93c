from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.conversation import MessageContent
from app.chat.store.chat_store import FILE_NAME, ChatStore
from app.chat.store.database import SCHEMA, STEPS
from app.common.database import migrate_to
from quantizer.system.errors import StorageError
from quantizer.system.process import child_environment
from tests.patience import PATIENCE_S

_WRITER = """
import sys
from pathlib import Path
from app.chat.conversation import MessageContent
from app.chat.store.chat_store import ChatStore
with ChatStore(Path(sys.argv[1])) as store:
    chat = store.chats.create(title=sys.argv[2])
    for number in range(20):
        store.messages.add(chat.id, None, MessageContent(role="user", content=f"word {number}"))
"""


def test_nothing_is_made_before_it_is_needed(tmp_path: Path) -> None:
    with ChatStore(tmp_path / "data"):
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_several_processes_begin_and_write_one_store_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    environment = child_environment(PYTHONPATH=os.pathsep.join(sys.path))
    writers = [subprocess.Popen([*command, str(number)], env=environment) for number in range(4)]
    assert [writer.wait(timeout=PATIENCE_S) for writer in writers] == [0] * 4
    with ChatStore(tmp_path) as store:
        chats = store.chats.page()
        assert sorted(chat.title for chat in chats) == ["0", "1", "2", "3"]
        assert all(len(store.messages.of(chat.id)) == 20 for chat in chats)


@pytest.mark.slow
def test_what_two_stores_of_a_process_keep_stays_when_another_process_has_looked(tmp_path: Path) -> None:
    look = "import sys\nfrom pathlib import Path\nfrom app.chat.store.chat_store import ChatStore\n"
    look += "with ChatStore(Path(sys.argv[1])) as store: print(*(chat.title for chat in store.chats.page()))"
    command = [sys.executable, "-c", look, str(tmp_path)]
    environment = child_environment(PYTHONPATH=os.pathsep.join(sys.path))
    with ChatStore(tmp_path) as first, ChatStore(tmp_path) as second:
        first.chats.create(title="before")
        second.chats.page()
        assert subprocess.check_output(command, env=environment, text=True) == "before\n"
        first.chats.create(title="after")
        assert subprocess.check_output(command, env=environment, text=True) == "after before\n"


def test_what_one_window_keeps_another_sees(store: ChatStore, tmp_path: Path) -> None:
    with ChatStore(tmp_path) as other:
        chat = store.chats.create(title="here")
        other.messages.add(chat.id, None, MessageContent(role="user", content="from the other"))
        assert [message.content for message in store.messages.of(chat.id)] == ["from the other"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a user's folders to the user")
def test_chats_are_readable_by_their_owner_only(store: ChatStore, tmp_path: Path) -> None:
    store.chats.create()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_a_file_that_others_could_read_is_made_private_when_it_is_opened(store: ChatStore, tmp_path: Path) -> None:
    store.chats.create()
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    with ChatStore(tmp_path) as other:
        other.chats.create()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_write_is_synced_before_it_is_acknowledged(store: ChatStore) -> None:
    with store._database.reading() as connection:
        pragmas = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        values = [connection.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in pragmas]
    assert values == ["wal", 2, 1, 10_000]


def test_a_file_of_a_newer_localllm_is_left_alone(store: ChatStore, tmp_path: Path) -> None:
    store.chats.create()
    with store._database.writing() as connection:
        connection.execute("PRAGMA user_version = 99")
    with ChatStore(tmp_path) as older, pytest.raises(StorageError, match="newer version"):
        older.chats.page()


def test_each_step_builds_on_the_ones_before(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "steps.db", isolation_level=None)
    migrate_to(connection, SCHEMA)
    migrate_to(connection, replace(SCHEMA, steps=(*STEPS, ("ALTER TABLE chats ADD COLUMN colour TEXT",))))
    assert connection.execute("SELECT colour FROM chats").fetchall() == []
    assert connection.execute("PRAGMA user_version").fetchone() == (len(STEPS) + 1,)
    connection.close()


def test_a_step_that_fails_leaves_the_version_that_was(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "steps.db", isolation_level=None)
    migrate_to(connection, SCHEMA)
    with pytest.raises(sqlite3.OperationalError):
        migrate_to(connection, replace(SCHEMA, steps=(*STEPS, ("ALTER TABLE chats ADD COLUMN colour TEXT", "not SQL"))))
    assert connection.execute("PRAGMA user_version").fetchone() == (len(STEPS),)
    assert "colour" not in [row[1] for row in connection.execute("PRAGMA table_info(chats)")]
    connection.close()


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"my diary" * 1000)
    with ChatStore(tmp_path) as store, pytest.raises(StorageError, match="not a database"):
        store.chats.page()
    assert (tmp_path / FILE_NAME).read_bytes() == b"my diary" * 1000


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with (
        ChatStore(tmp_path / "file") as store,
        pytest.raises(StorageError, match=r"cannot be stored.*LOCALLLM_DATA_DIR"),
    ):
        store.chats.create()


def test_a_full_disk_raises_and_stored_chats_stay(store: ChatStore) -> None:
    chat = store.chats.create()
    with store._database.reading() as connection:
        n_pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {n_pages + 2}")
    with pytest.raises(StorageError, match="disk is full"):
        store.messages.add(chat.id, None, MessageContent(role="user", content="x" * 100_000))
    assert store.messages.of(chat.id) == ()
    with store._database.reading() as connection:
        connection.execute("PRAGMA max_page_count = 100000")
    store.messages.add(chat.id, None, MessageContent(role="user", content="x" * 100_000))
