"""Steps of a chat taken back, with the files that they changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.chat.conversation import Message
from app.chat.steps import last_step
from app.chat.store.chat_store import ChatStore
from app.tools.approval import Decision
from quantizer.system.errors import StorageError
from tests.app.chat.tool_chats import (
    WRITTEN,
    ask,
    backend_of,
    call,
    calling,
    decide,
    opened_chat,
    roles,
    said,
    unbatched,
)
from tests.app.client.scripted_client import ScriptedClient

__all__ = ["unbatched"]

SCRIPT = (calling(call(1, "write")), calling(call(2, "read")), said("Done."))
ALLOWS = (Decision.ONCE,) * 4


def _ids(messages: tuple[Message, ...]) -> list[int]:
    return [message.id for message in messages]


async def test_steps_are_taken_back_one_by_one_with_the_files_they_changed(tmp_path: Path):
    backend = backend_of()
    async with opened_chat(ScriptedClient(*SCRIPT), backend, tmp_path) as chat:
        decide(chat, *ALLOWS)
        asked, written, wrote, *later = await ask(chat)
        step = await chat.undo_step()
        assert (step.messages, step.restored, step.question) == (tuple(later), (), None)
        assert (chat.conversation.leaf_id, backend.undone) == (wrote.id, [])
        step = await chat.undo_step()
        assert _ids(step.messages) == [written.id, wrote.id]
        assert [change.path for change in step.restored] == [WRITTEN.path]
        assert (chat.conversation.leaf_id, backend.undone) == (asked.id, [WRITTEN])
        assert chat.conversation.messages[wrote.id].result.is_undone
        step = await chat.undo_step()
        assert (step.question, chat.conversation.leaf_id) == (asked, None)
        assert await chat.undo_step() is None
    with ChatStore(tmp_path) as store:
        transcript = store.transcripts.read(1)
    assert (transcript.chat.leaf_id, len(transcript.messages)) == (None, 6)
    assert transcript.messages[2].result.is_undone


async def test_what_was_taken_back_stays_a_version_of_what_comes_next():
    client = ScriptedClient(*SCRIPT, said("Otherwise."))
    async with opened_chat(client, backend_of()) as chat:
        decide(chat, *ALLOWS)
        branch = await ask(chat)
        await chat.undo_step()
        await ask(chat, "Do it otherwise.")
        again = chat.conversation.branch
        assert roles(again) == ["user", "assistant", "tool", "user", "assistant"]
        assert chat.conversation.entries()[3].n_versions == 2
        await chat.step_to_version(again[3].id, -1)
        assert _ids(chat.conversation.branch) == _ids(branch)


async def test_a_step_is_done_again_with_its_files_until_the_chat_goes_on(tmp_path: Path):
    backend = backend_of()
    async with opened_chat(ScriptedClient(*SCRIPT, said("Else.")), backend, tmp_path) as chat:
        decide(chat, *ALLOWS)
        branch = await ask(chat)
        for _ in range(2):
            await chat.undo_step()
        for _ in range(2):
            assert await chat.redo_step() is not None
        assert chat.conversation.branch == branch
        assert (backend.undone[-1].before, backend.undone[-1].after) == (WRITTEN.after, WRITTEN.before)
        assert await chat.redo_step() is None
        await chat.undo_step()
        await ask(chat, "Else?")
        assert await chat.redo_step() is None
    with ChatStore(tmp_path) as store:
        assert not store.messages.of(1)[2].result.is_undone


async def test_a_file_that_was_changed_since_leaves_chat_and_files_as_they_are():
    backend = backend_of()
    async with opened_chat(ScriptedClient(calling(call(1, "write")), said("Done.")), backend) as chat:
        decide(chat, *ALLOWS)
        branch = await ask(chat)
        backend.changed_since.add(WRITTEN.path)
        with pytest.raises(StorageError, match="was changed since"):
            await chat.undo_step()
        assert chat.conversation.branch == branch
        assert not branch[2].result.is_undone


def test_a_question_with_its_answer_is_a_step_and_so_is_a_summary():
    def message(number: int, role: str, content: str = "x", **fields: object) -> Message:
        return Message(id=number, parent_id=number - 1 or None, role=role, content=content, **fields)

    branch = (message(1, "user"), message(2, "assistant"), message(3, "user"), message(4, "assistant"))
    assert _ids(last_step(branch)) == [3, 4]
    summarised = (*branch, message(5, "summary"))
    assert _ids(last_step(summarised)) == [5]
    assert _ids(last_step((*summarised, message(6, "assistant")))) == [6]
    assert last_step(()) == ()
