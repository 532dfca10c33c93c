from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.chat.store import ChatStore
from app.settings.private_files import mark_in_use
from app.settings.settings import Settings

Run = Callable[..., Any]


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
    assert localllm("forget", "--keep-chats", "--yes").out.endswith("Removed 1 files, 2 kB.\n")
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
