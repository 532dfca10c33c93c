"""Writers and a sweeper on one data folder are killed at any time: no message has lost a picture."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.chat.store import attachment_files
from app.chat.store.attachment_files import FOLDER_NAME, KEPT_FOR_MS
from app.chat.store.chat_store import ChatStore
from app.chat.store.database import now_ms
from quantizer.system.process import child_environment

pytestmark = pytest.mark.slow
_SCRIPT = Path(__file__).with_name("attachment_writer.py")


def _acknowledged(output: bytes) -> set[int]:
    """Return the ids of the messages that a writer was told are stored and did not remove."""
    kept: set[int] = set()
    for line in output.splitlines(keepends=True):
        if line.endswith(b"\n"):
            number = int(line)
            kept = kept - {-number} if number < 0 else kept | {number} if number else set()
    return kept


def test_a_kill_leaves_every_picture_of_every_message(tmp_path: Path) -> None:
    environment = child_environment(PYTHONPATH=os.pathsep.join(sys.path))
    chance = random.Random(3)
    for trial in range(6):
        started = [
            subprocess.Popen(
                [sys.executable, str(_SCRIPT), str(tmp_path), role, str(10 * trial + number)],
                stdout=subprocess.PIPE,
                env=environment,
            )
            for number, role in enumerate(("write", "write", "sweep"))
        ]
        outputs = [process.stdout for process in started if process.stdout]
        first = [output.readline() for output in outputs[:2]]
        time.sleep(chance.uniform(0.2, 1.5))
        for process in started:
            process.kill()
        told = [line + output.read() for line, output in zip(first, outputs[:2], strict=True)]
        for process in started:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        with ChatStore(tmp_path) as store:
            _assert_nothing_is_lost(store, told)


def _assert_nothing_is_lost(store: ChatStore, told: list[bytes]) -> None:
    with store.files._database.reading() as connection:
        stored = {int(row["id"]) for row in connection.execute("SELECT id FROM messages")}
        chat_ids = [int(row["id"]) for row in connection.execute("SELECT id FROM chats")]
    # The last line of a writer may be one removal or purge behind what it did.
    assert all(len(_acknowledged(output) - stored) <= 1 or not _acknowledged(output) & stored for output in told)
    for chat_id in chat_ids:
        for message in store.messages.of(chat_id):
            for file in message.attachments[0].media:
                assert len(store.files.read(file)) == file.n_bytes


def test_what_kills_left_goes_with_the_next_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = child_environment(PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, str(_SCRIPT), str(tmp_path), "write", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.5)
        writer.kill()
    monkeypatch.setattr(attachment_files, "now_ms", lambda: now_ms() + 2 * KEPT_FOR_MS)
    with ChatStore(tmp_path) as store:
        for chat in store.chats.page():
            store.chats.delete(chat.id)
        store.chats.purge_deleted(1 << 60)
        store.files.remove_unused()
        store.files.remove_strays()
    assert [path for path in (tmp_path / FOLDER_NAME).rglob("*") if path.is_file()] == []
