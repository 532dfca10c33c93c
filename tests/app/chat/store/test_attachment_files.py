"""The files of pictures and sounds: kept before they are named, removed after nobody names them."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.chat.conversation import Attachment, MediaFile, Message, MessageContent
from app.chat.store import attachment_files
from app.chat.store.attachment_files import FOLDER_NAME, KEPT_FOR_MS
from app.chat.store.chat_store import FILE_NAME, ChatStore
from app.chat.store.database import SCHEMA, STEPS, attachments_of, now_ms
from app.common.database import migrate_to
from app.protocol.chat import MediaPart
from quantizer.system.errors import StorageError


def file_of(content: bytes) -> MediaFile:
    return MediaFile(hashlib.sha256(content).hexdigest(), "image/png", len(content))


def attached(*contents: bytes, name: str = "photo.png") -> Attachment:
    return Attachment(name, "", "image/png", "", tuple(map(file_of, contents)))


def keep(store: ChatStore, *contents: bytes) -> None:
    store.files.keep({file_of(content).sha256: content for content in contents})


def ask(store: ChatStore, chat_id: int, *contents: bytes, parent_id: int | None = None) -> Message:
    question = MessageContent(role="user", content="What is this?", attachments=(attached(*contents),))
    return store.messages.add(chat_id, parent_id, question)


def on_disk(data_dir: Path) -> set[str]:
    return {path.parent.name + path.name for path in (data_dir / FOLDER_NAME).glob("*/*")}


@pytest.fixture
def a_day_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment_files, "now_ms", lambda: now_ms() + KEPT_FOR_MS + 1000)


def test_what_was_kept_is_read_as_a_part_of_a_request(store: ChatStore) -> None:
    keep(store, b"PNG")
    file = file_of(b"PNG")
    assert store.files.read(file) == b"PNG"
    assert store.files.parts([file, file]) == {file.sha256: MediaPart("image/png", "UE5H")}


@pytest.mark.skipif(sys.platform == "win32", reason="no such modes there")
def test_only_its_owner_reads_it(store: ChatStore, tmp_path: Path) -> None:
    keep(store, b"PNG")
    sha256 = file_of(b"PNG").sha256
    path = tmp_path / FOLDER_NAME / sha256[:2] / sha256[2:]
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, path.parent.parent)] == [
        0o600,
        0o700,
        0o700,
    ]


def test_a_message_has_its_attachments_when_it_is_read_again(store: ChatStore, tmp_path: Path) -> None:
    keep(store, b"PNG")
    chat = store.chats.create()
    ask(store, chat.id, b"PNG")
    with ChatStore(tmp_path) as other:
        (message,) = other.messages.of(chat.id)
        assert message.attachments == (attached(b"PNG"),)


def test_a_message_cannot_name_a_file_that_is_not_kept(store: ChatStore) -> None:
    chat = store.chats.create()
    with pytest.raises(StorageError, match=r"photo\.png is no longer stored\. Attach it again"):
        ask(store, chat.id, b"PNG")
    assert store.messages.of(chat.id) == ()


def test_a_missing_and_a_damaged_file_are_said_so(store: ChatStore, tmp_path: Path) -> None:
    keep(store, b"PNG")
    sha256 = file_of(b"PNG").sha256
    path = tmp_path / FOLDER_NAME / sha256[:2] / sha256[2:]
    path.write_bytes(b"JPG")
    with pytest.raises(StorageError, match="is damaged"):
        store.files.read(file_of(b"PNG"))
    path.unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        store.files.read(file_of(b"PNG"))


def test_a_file_stays_while_any_chat_or_draft_uses_it(store: ChatStore, tmp_path: Path, a_day_later: None) -> None:
    keep(store, b"PNG")
    first, second = store.chats.create(), store.chats.create()
    ask(store, first.id, b"PNG")
    ask(store, second.id, b"PNG")
    store.drafts.save(None, MessageContent(content="", attachments=(attached(b"PNG"),)))
    for doomed in (first, second):
        store.chats.delete(doomed.id)
        store.chats.purge_deleted(1 << 60)
        assert store.files.remove_unused() == 0
    assert on_disk(tmp_path) == {file_of(b"PNG").sha256}


def test_the_last_chat_takes_its_files_along(store: ChatStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(store, b"PNG", b"JPG")
    chat = store.chats.create()
    ask(store, chat.id, b"PNG")
    store.chats.delete(chat.id)
    for module in ("app.chat.store.attachment_files.now_ms", "app.chat.store.chat_store.now_ms"):
        monkeypatch.setattr(module, lambda: now_ms() + 8 * KEPT_FOR_MS)
    keep(store, b"JPG")  # attached just now, and not sent yet
    assert store.purge_deleted() == 1
    assert on_disk(tmp_path) == {file_of(b"JPG").sha256}


def test_a_file_that_cannot_be_removed_keeps_nobody_from_the_chats(
    store: ChatStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a_day_later: None
) -> None:
    store.chats.create(title="Dinner")
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(attachment_files, "now_ms", lambda: now_ms() - 2 * KEPT_FOR_MS)
        keep(store, b"PNG")

    def refuse(_path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert store.purge_deleted() == 0
    assert [chat.title for chat in store.chats.page()] == ["Dinner"]
    monkeypatch.undo()
    assert store.files.remove_strays() == 1
    assert on_disk(tmp_path) == set()


def test_a_file_that_was_kept_or_released_just_now_stays(store: ChatStore, tmp_path: Path) -> None:
    keep(store, b"PNG")
    assert store.files.remove_unused() == 0
    chat = store.chats.create()
    message = ask(store, chat.id, b"PNG")
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as raw, raw:
        raw.execute("UPDATE media_files SET free_from_ms = 0")
    store.messages.remove(chat.id, message.id)
    assert store.files.remove_unused() == 0
    store.messages.restore(chat.id, [message], message.id)
    assert store.messages.of(chat.id) == (message,)


def test_a_copy_of_a_chat_uses_the_files_too(store: ChatStore, tmp_path: Path, a_day_later: None) -> None:
    keep(store, b"PNG")
    chat = store.chats.create()
    ask(store, chat.id, b"PNG")
    copy = store.transcripts.duplicate(chat.id)
    store.chats.delete(chat.id)
    store.chats.purge_deleted(1 << 60)
    assert store.files.remove_unused() == 0
    assert store.messages.of(copy.id)[0].attachments == (attached(b"PNG"),)


def test_a_file_that_was_removed_while_it_is_kept_again_is_written_again(store: ChatStore, tmp_path: Path) -> None:
    keep(store, b"PNG")
    with ChatStore(tmp_path) as other, pytest.MonkeyPatch.context() as later:
        later.setattr(attachment_files, "now_ms", lambda: now_ms() + KEPT_FOR_MS + 1000)
        assert other.files.remove_unused() == 1
    keep(store, b"PNG")
    assert store.files.read(file_of(b"PNG")) == b"PNG"


def test_what_killed_processes_left_is_found_and_removed(store: ChatStore, tmp_path: Path) -> None:
    keep(store, b"PNG")
    folder = tmp_path / FOLDER_NAME / "ab"
    folder.mkdir(exist_ok=True)
    (folder / ("c" * 62)).write_bytes(b"no row")
    (folder / f".{'c' * 62}.999999999.0.tmp").write_bytes(b"half")
    (folder / f".{'c' * 62}.{os.getpid()}.0.tmp").write_bytes(b"being written")
    paths, n_bytes = store.files.unused()
    assert (len(paths), n_bytes) == (2, 10)
    assert store.files.remove_strays() == 2
    assert store.files.read(file_of(b"PNG")) == b"PNG"
    assert [path.name for path in folder.iterdir()] == [f".{'c' * 62}.{os.getpid()}.0.tmp"]


def test_attachments_of_the_former_tables_open_and_are_found_by_name(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as raw:
        raw.row_factory = sqlite3.Row
        migrate_to(raw, replace(SCHEMA, steps=STEPS[:3]))
        raw.execute("INSERT INTO chats (id, title, created_ms, updated_ms) VALUES (1, 't', 1, 1)")
        old = '[{"name":"recipe.md","content":"Soup.","media_type":"text/plain"}]'
        raw.execute(
            "INSERT INTO messages (id, chat_id, created_ms, role, state, model, stats, content, reasoning, attachments)"
            " VALUES (1, 1, 1, 'user', 'finished', '', '{}', 'q', '', ?)",
            (old,),
        )
    with ChatStore(tmp_path) as store:
        assert store.messages.of(1)[0].attachments == (Attachment("recipe.md", "Soup."),)
        assert [match.message_id for match in store.search.find("recipe")] == [1]


def test_a_chat_is_found_by_the_name_of_an_attachment_until_that_is_removed(store: ChatStore) -> None:
    chat = store.chats.create(title="Dinner")
    message = store.messages.add(
        chat.id, None, MessageContent(role="user", content="q", attachments=(Attachment("Zürich plan.pdf", "x"),))
    )
    (match,) = store.search.find("zurich pl")
    assert (match.chat.id, match.message_id, match.snippet.text) == (chat.id, message.id, "Zürich plan.pdf")
    store.messages.remove(chat.id, message.id)
    assert store.search.find("zurich") == []


_CONTENTS = st.sampled_from([b"a", b"b", b"c"])
_NAMES = ("ask", "draft", "send draft", "remove message", "delete", "purge", "sweep", "sweep later", "duplicate")
_STEPS = st.lists(st.tuples(st.sampled_from(_NAMES), st.integers(0, 2), _CONTENTS), max_size=25)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_STEPS)
def test_every_used_file_is_on_the_disk_and_after_a_day_no_other(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, bytes]]
) -> None:
    data_dir = tmp_path_factory.mktemp("chats")
    with ChatStore(data_dir) as first, ChatStore(data_dir) as second:
        for number, (step, place, content) in enumerate(steps):
            take_step((first, second)[number % 2], step, place, content)
            assert used_by(first) <= on_disk(data_dir)
            for digest in used_by(first):
                first.files.read(replace(file_of(b"a"), sha256=digest))
        take_step(first, "sweep later", 0, b"")
        first.files.remove_strays()
        assert used_by(first) == on_disk(data_dir)


def take_step(store: ChatStore, step: str, place: int, content: bytes) -> None:
    chats = store.chats.page()
    chat_id = chats[place].id if place < len(chats) else None
    _ACTIONS[step](store, chat_id, content)


def save_draft(store: ChatStore, chat_id: int | None, content: bytes) -> None:
    keep(store, content)
    store.drafts.save(chat_id, MessageContent(content="", attachments=(attached(content),)))


def ask_anew(store: ChatStore, chat_id: int | None, content: bytes) -> None:
    keep(store, content)
    ask(store, chat_id or store.chats.create().id, content)


def send_draft(store: ChatStore, chat_id: int | None, _content: bytes) -> None:
    draft = store.drafts.get(chat_id)
    store.drafts.save(chat_id)
    if chat_id and draft.attachments:
        store.messages.add(chat_id, None, MessageContent(role="user", content="", attachments=draft.attachments))


def remove_message(store: ChatStore, chat_id: int | None, _content: bytes) -> None:
    if chat_id and (messages := store.messages.of(chat_id)):
        store.messages.remove(chat_id, messages[0].id)


def sweep(store: ChatStore, _chat_id: int | None, _content: bytes) -> None:
    store.files.remove_unused()
    store.files.remove_strays()


def sweep_later(store: ChatStore, _chat_id: int | None, _content: bytes) -> None:
    with pytest.MonkeyPatch.context() as later:
        later.setattr(attachment_files, "now_ms", lambda: now_ms() + KEPT_FOR_MS + 1000)
        store.files.remove_unused()


_ACTIONS: dict[str, Callable[[ChatStore, int | None, bytes], object]] = {
    "ask": ask_anew,
    "draft": save_draft,
    "send draft": send_draft,
    "remove message": remove_message,
    "delete": lambda store, chat_id, _: chat_id and store.chats.delete(chat_id),
    "purge": lambda store, _, __: store.chats.purge_deleted(1 << 60),
    "sweep": sweep,
    "sweep later": sweep_later,
    "duplicate": lambda store, chat_id, _: chat_id and store.transcripts.duplicate(chat_id),
}


def used_by(store: ChatStore) -> set[str]:
    """Return the digests that messages and drafts name, read from their own columns."""
    with store.files._database.reading() as connection:
        columns = [
            *connection.execute("SELECT attachments FROM messages"),
            *connection.execute("SELECT attachments FROM draft_attachments"),
        ]
    named = (attachment for row in columns for attachment in attachments_of(row["attachments"]))
    return {file.sha256 for attachment in named for file in attachment.media}
