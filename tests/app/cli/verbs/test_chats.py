from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from app.chat.conversation import MessageContent, MessageState
from app.chat.store.chat_store import ChatStore
from app.settings.private_files import conversation_name
from tests.app.cli.in_process import run_localllm


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALLLM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("LOCALLLM_PORT", "9")  # where no service answers
    return tmp_path / "data"


def _run(*arguments: str) -> CompletedProcess[str]:
    done = run_localllm(os.environ, "chats", *arguments)
    assert done.returncode == 0, done.stderr
    return done


def _keep(data_dir: Path, title: str, *contents: str, model: str = "", created_ms: int = 0) -> int:
    with ChatStore(data_dir) as store:
        chat, parent_id = store.chats.create(title=title, model=model), None
        for content in contents:
            said = MessageContent(role="user", content=content, created_ms=created_ms)
            parent_id = store.messages.add(chat.id, parent_id, said).id
        return chat.id


def test_chats_are_listed_as_lines_and_as_json(data_dir: Path) -> None:
    ids = [_keep(data_dir, "Soup"), _keep(data_dir, "Bread")]
    with ChatStore(data_dir) as store:
        store.chats.pin(ids[0], True)
    first, second = _run("list").stdout.splitlines()
    assert first.split()[0] == str(ids[0])
    assert first.endswith("Soup  (pinned)")
    assert second.endswith("Bread")
    assert [chat["title"] for chat in json.loads(_run("list", "--json").stdout)] == ["Soup", "Bread"]


def test_a_chat_that_a_window_answers_says_so_in_lists_and_documents(data_dir: Path) -> None:
    chat_id = _keep(data_dir, "Soup", "how?")
    begun = MessageContent(role="assistant", content="Boil", state=MessageState.PARTIAL)
    shown: list[tuple[str, bool, str]] = []
    with ChatStore(data_dir) as window:
        window.messages.add(chat_id, window.chats.get(chat_id).leaf_id, begun, window.writers.window)
        for _ in range(2):
            is_answering = json.loads(_run("list", "--json").stdout)[0]["is_answering"]
            listed = _run("list").stdout.strip().partition("Soup")[2]
            shown.append((listed, is_answering, _run("show", str(chat_id)).stdout.strip().splitlines()[-1]))
            window.writers.close()
    assert shown == [("  (answering)", True, "*(still being written)*"), ("", False, "*(unfinished)*")]


def test_without_chats_the_list_is_empty(data_dir: Path) -> None:
    for arguments in (("list",), ("list", "--archived"), ("search", "soup")):
        done = _run(*arguments)
        assert done.stdout == ""
        assert done.stderr.startswith(("There are no ", "No chat "))
    assert json.loads(_run("list", "--json").stdout) == []


def test_a_chat_is_shown_without_what_a_terminal_would_obey(data_dir: Path) -> None:
    chat_id = _keep(data_dir, "\x1b]0;owned\x07title", "hello \x1b[2J \x9b31m \u202e there")
    for arguments in (("show", str(chat_id)), ("show", str(chat_id), "--json"), ("list",), ("search", "hello")):
        shown = _run(*arguments).stdout
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown), arguments
    assert "hello" in _run("show", str(chat_id)).stdout


def test_words_are_found_with_a_snippet_by_model_and_day(data_dir: Path) -> None:
    old = _keep(data_dir, "a", "the old aubergine", model="guide", created_ms=1_700_000_000_000)  # 2023-11-14
    new = _keep(data_dir, "b", "the new aubergine", model="qwen", created_ms=1_710_000_000_000)  # 2024-03-09
    assert "        the new aubergine" in _run("search", "auberg").stdout.splitlines()

    def found(*options: str) -> list[int]:
        return [hit["chat"]["id"] for hit in json.loads(_run("search", "auberg", "--json", *options).stdout)]

    assert found() == [new, old]
    assert found("--model", "guide") == [old]
    assert found("--since", "2024-01-01") == [new]
    assert found("--until", "2023-12-31") == [old]
    assert found("--limit", "1") == [new]


def test_what_is_exported_can_be_imported(data_dir: Path, tmp_path: Path) -> None:
    _keep(data_dir, "Soup", "lentils")
    archived = _keep(data_dir, "Old soup", "peas")
    with ChatStore(data_dir) as store:
        store.chats.archive(archived, True)
    output = tmp_path / "all.json"
    _run("export", "--all", "--format", "json", "-o", str(output))
    assert json.loads(_run("import", str(output), "--json").stdout) == {"ids": [3, 4], "skipped": []}
    assert [chat["title"] for chat in json.loads(_run("list", "--json").stdout)] == ["Soup", "Soup"]


def test_skipped_chats_of_an_import_are_reported(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "chats.json"
    file.write_text(json.dumps([{"messages": [{"role": "user", "content": "hi"}]}, {"messages": 3}]))
    done = _run("import", str(file))
    assert done.stdout == "Imported chats: 1.\n"
    assert done.stderr.startswith("Skipped: chat 1 is not a chat")


def test_a_deleted_chat_can_be_restored(data_dir: Path) -> None:
    chat_id = str(_keep(data_dir, "Soup"))
    _run("delete", chat_id)
    assert _run("list").stdout == ""
    assert _run("restore", chat_id).stdout.endswith("Soup\n")
    assert _run("list").stdout.endswith("Soup\n")


def test_a_deleted_chat_takes_its_saved_prefixes_and_embeddings_along(data_dir: Path) -> None:
    ids = [_keep(data_dir, "Soup"), _keep(data_dir, "Bread")]
    with ChatStore(data_dir) as store:
        names = [conversation_name(store.chats.get(chat_id).prompt_cache_key) for chat_id in ids]
    folder = data_dir.with_name("cache") / "prefix" / "weights"
    folder.mkdir(parents=True)
    files = [folder / f"{number}-{name}" for number, name in enumerate((*names, "none"))]
    former = folder / "of-no-known-conversation".replace("-", "")
    pictures = data_dir.with_name("cache") / "media" / "weights"
    pictures.mkdir(parents=True)
    embeddings = [pictures / f"{number}-{name}" for number, name in enumerate((*names, "none"))]
    for path in (*files, former, *embeddings):
        path.touch()
    _run("delete", str(ids[0]))
    assert sorted(folder.iterdir()) == files[1:]
    assert sorted(pictures.iterdir()) == embeddings[1:]
    _run("restore", str(ids[0]))
