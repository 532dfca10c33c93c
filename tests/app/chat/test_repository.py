"""What engines computed of a deleted chat is deleted once: by the service that has it, else here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from app.chat.repository import delete_prefixes
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
