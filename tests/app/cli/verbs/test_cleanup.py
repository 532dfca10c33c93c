from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.chat.conversation import Attachment, MediaFile, MessageContent
from app.chat.store.chat_store import ChatStore
from app.library.local.index import Index
from app.settings.private_files import mark_in_use
from app.settings.settings import Settings
from app.tools.file_access import NO_FILE
from tests.app.small_models import small_model

Run = Callable[..., Any]


def _partial(models: Path) -> Path:
    path = models / "me" / "x" / ".new.gguf.0.partial"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(2000))
    return path


def test_a_dry_run_lists_stale_files_and_deletes_none(localllm: Run, models: Path) -> None:
    path = _partial(models)
    assert localllm("prune", "--dry-run").out == "   1 × interrupted writing        2 kB\n"
    output = localllm("prune", "--dry-run", "--json").json
    assert list(output) == ["found", "bytes_freed", "rows_forgotten", "dry_run"]
    assert (output["found"][0]["bytes"], output["bytes_freed"]) == (2000, 0)
    assert path.exists()


def test_what_goes_is_counted(localllm: Run, models: Path) -> None:
    path = _partial(models)
    assert localllm("prune", "--yes").out.endswith("Freed 2 kB.\n")
    assert not path.exists()
    assert localllm("prune").out == "There is nothing to remove.\n"


def test_an_interrupted_checkpoint_is_listed_with_its_age_and_deleted(localllm: Run, home: Path) -> None:
    folder = home / "data" / "checkpoints" / "org" / "check"
    (folder / ".fetching").mkdir(parents=True)
    for name in ("fetched.safetensors", "mine.safetensors", ".fetching/part.safetensors"):
        (folder / name).write_bytes(bytes(1000))
    then = time.time() - 8 * 86_400
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then))
    with Index(home / "cache") as index:
        index.record_sha256(folder / "fetched.safetensors", "0" * 64)
    output = localllm("prune", "--dry-run").out
    assert output == "   1 × interrupted checkpoint     2 kB\n       org/check, untouched for 8 days\n"
    assert localllm("prune", "--yes").out.endswith("Freed 2 kB.\n")
    assert [path.name for path in folder.iterdir()] == ["mine.safetensors"]


def test_pictures_that_no_chat_has_any_more_go_and_the_others_stay(localllm: Run, home: Path) -> None:
    used, unused = (hashlib.sha256(content).hexdigest() for content in (b"used", b"unused"))
    with ChatStore(home / "data") as store:
        store.files.keep({used: b"used", unused: b"unused"})
        attachment = Attachment("photo.png", "", "image/png", "", (MediaFile(used, "image/png", 4),))
        question = MessageContent(role="user", content="", attachments=(attachment,))
        store.messages.add(store.chats.create().id, None, question)
    assert localllm("prune", "--yes").out == "There is nothing to remove.\n"  # kept just now
    with closing(sqlite3.connect(home / "data" / "chats.db")) as raw, raw:
        raw.execute("UPDATE media_files SET free_from_ms = 0")
    assert localllm("prune", "--dry-run").out == "   1 × unused attachments          6 B\n"
    assert localllm("prune", "--yes").out.endswith("Freed 6 B.\n")
    (left,) = (path for path in (home / "data" / "attachments").rglob("*") if path.is_file())
    assert left.read_bytes() == b"used"


def test_contents_of_files_that_no_chat_can_restore_go(localllm: Run, home: Path) -> None:
    with ChatStore(home / "data") as store:
        store.chats.create()
        store.file_history.prepare(home / "a", NO_FILE, b"written")
    assert localllm("prune", "--yes").out == "There is nothing to remove.\n"  # kept just now
    (content,) = (home / "data" / "file-history").glob("??/*")
    os.utime(content, (0, 0))
    assert localllm("prune", "--yes").out.endswith("Freed 7 B.\n")
    assert not content.exists()


def test_without_chats_no_store_of_them_is_made(localllm: Run, home: Path) -> None:
    localllm("prune")
    assert not (home / "data" / "chats.db").exists()


def test_rows_of_files_that_are_gone_leave_the_index(localllm: Run, models: Path) -> None:
    path = small_model(models / "me" / "x" / "m.gguf")
    localllm("ls")
    path.unlink()
    assert localllm("prune", "--json").json["rows_forgotten"] == 1


def test_without_anybody_to_ask_nothing_goes(localllm: Run, models: Path) -> None:
    path = _partial(models)
    assert localllm("prune").status == 2
    assert path.exists()


@pytest.fixture
def said(home: Path) -> Path:
    """Leave a chat, a saved prefix and a model; return the folder."""
    with ChatStore(home / "data") as store:
        store.chats.create(title="secret")
    for name in ("cache/prefix/weights/state", "data/models/me/x/m.gguf", "data/prompts/mine.md"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(bytes(2000))
    return home


def test_everything_that_was_said_goes_and_models_stay(localllm: Run, said: Path) -> None:
    output = localllm("forget", "--yes").out
    assert "     1 × saved prefixes                        2 kB\n" in output
    assert output.splitlines()[-1].startswith("Removed 2 files, ")
    assert not (said / "data" / "chats.db").exists()
    assert not (said / "cache" / "prefix" / "weights").exists()
    assert (said / "data" / "models" / "me" / "x" / "m.gguf").exists()
    assert (said / "data" / "prompts" / "mine.md").exists()
    assert localllm("forget").out == "There is nothing to forget.\n"


def test_chats_are_kept_on_request(localllm: Run, said: Path) -> None:
    assert localllm("forget", "--keep-chats", "--yes").out.endswith("Removed 1 file, 2 kB.\n")
    with ChatStore(said / "data") as store:
        assert [chat.title for chat in store.chats.page()] == ["secret"]


def test_pictures_of_chats_go_and_stay_with_them(localllm: Run, said: Path) -> None:
    with ChatStore(said / "data") as store:
        store.files.keep({hashlib.sha256(b"PNG").hexdigest(): b"PNG"})
    folder = said / "data" / "attachments"
    localllm("forget", "--keep-chats", "--yes")
    assert [path.read_bytes() for path in folder.rglob("*") if path.is_file()] == [b"PNG"]
    assert "     1 × pictures and sounds of chats           3 B\n" in localllm("forget", "--yes").out
    assert not any(folder.iterdir())


def test_a_dry_run_of_forget_removes_nothing(localllm: Run, said: Path) -> None:
    output = localllm("forget", "--dry-run", "--json").json
    assert [item["what"] for item in output["found"]] == ["chats, drafts and prompt history", "saved prefixes"]
    assert (output["bytes_freed"], output["dry_run"]) == (0, True)
    assert (said / "data" / "chats.db").exists()


def test_forgetting_asks_first(localllm: Run, said: Path) -> None:
    ended = localllm("forget")
    assert ended.status != 0
    assert "--yes" in ended.err
    assert (said / "data" / "chats.db").exists()


def test_nothing_is_forgotten_under_a_running_service(localllm: Run, said: Path) -> None:
    with mark_in_use(Settings(data_dir=said / "data", cache_dir=said / "cache")):
        ended = localllm("forget", "--yes")
    assert ended.status != 0
    assert "localllm is running" in ended.err
    assert (said / "data" / "chats.db").exists()
