"""What engines computed of a deleted chat is deleted once: by the service that has it, else here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from app.chat.repository import SqliteChatRepository, delete_prefixes
from app.chat.store.chat_store import ChatStore
from app.chat.store.tables import PURGE_AFTER_MS
from app.protocol.errors import ServiceError
from app.settings.private_files import conversation_name
from quantizer.system.errors import UserError


@pytest.mark.parametrize(
    ("asks", "failure", "is_own_service", "is_deleted_here"),
    [
        (False, None, True, True),
        (True, None, True, False),
        (True, None, False, True),
        (True, ServiceError("None runs.", "Start one."), True, True),
    ],
    ids=["no service", "its own files", "of another machine", "none runs"],
)
async def test_files_are_deleted_here_where_no_service_of_ours_does_it(
    tmp_path: Path, asks: bool, failure: UserError | None, is_own_service: bool, is_deleted_here: bool
) -> None:
    saved = tmp_path / "prefix" / "weights" / f"1-{conversation_name('soup')}"
    saved.parent.mkdir(parents=True)
    saved.touch()
    forgotten: list[str] = []

    async def forget(keys: Sequence[str]) -> None:
        if failure is not None:
            raise failure
        forgotten.extend(keys)

    found = await delete_prefixes(["soup"], tmp_path, forget if asks else None, is_own_service=is_own_service)
    assert (found, not saved.exists()) == (failure, is_deleted_here)
    assert forgotten == (["soup"] if asks and failure is None else [])


async def test_first_opening_deletes_what_was_saved_of_chats_after_they_were_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ChatStore(tmp_path) as store:
        kept, deleted = store.chats.create(title="Soup"), store.chats.create(title="Bread")
        store.chats.delete(deleted.id)
    paths = {
        chat.id: tmp_path / f"prefix/weights/1-{conversation_name(chat.prompt_cache_key)}" for chat in (kept, deleted)
    }

    def save() -> None:
        for path in paths.values():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    save()
    monkeypatch.setattr("app.chat.store.chat_store.PURGE_AFTER_MS", -PURGE_AFTER_MS)  # purged as soon as it is opened
    async with SqliteChatRepository(tmp_path, tmp_path) as repository:
        await repository.open()
        assert (paths[kept.id].exists(), paths[deleted.id].exists()) == (True, False)
        assert not await repository.thread.do(lambda store: store.chats.deleted())
