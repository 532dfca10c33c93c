"""Files as an editor has them open: read with their unsaved text, written there, and taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.acp.editors import FakeEditor, asks, opened_editor
from tests.app.chat.tool_chats import call, calling, said, unbatched
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply

__all__ = ["unbatched"]

EDIT = call(1, "edit_file", path="notes.txt", old_text="two", new_text="2")
READ = call(2, "read_file", path="notes.txt")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    notes = folder / "notes.txt"
    notes.write_text("one\ntwo\n", encoding="utf-8")
    return notes


async def _prompted(tmp_path: Path, editor: FakeEditor, *replies: ScriptedReply, then: str = "") -> ScriptedClient:
    client = ScriptedClient(*replies)
    async with opened_editor(client, editor, tmp_path, mode="edit") as connection:
        folder = str(tmp_path / "project")
        session_id = (await connection.new_session(cwd=folder, mcp_servers=[])).session_id
        await connection.prompt(session_id=session_id, prompt=asks("Do it."))
        if then:
            await connection.prompt(session_id=session_id, prompt=asks(then))
    return client


async def test_unsaved_text_is_read(tmp_path, notes):
    editor = FakeEditor(has_files=True)
    editor.files[str(notes)] = "one\ntwo\nunsaved\n"
    client = await _prompted(tmp_path, editor, calling(READ), said("I see."))
    assert client.requests[1][-1].content.endswith("unsaved\n")


async def test_an_edit_is_made_to_the_unsaved_text_by_the_editor_and_undo_brings_that_back(tmp_path, notes):
    editor = FakeEditor(has_files=True)
    editor.files[str(notes)] = "one\ntwo\nunsaved\n"
    await _prompted(tmp_path, editor, calling(EDIT), said("Done."))
    assert editor.written == [(str(notes), "one\n2\nunsaved\n")]
    assert notes.read_text(encoding="utf-8") == "one\n2\nunsaved\n"
    (tmp_path / "again").mkdir()


async def test_undo_brings_back_the_text_that_was_not_saved(tmp_path, notes):
    editor = FakeEditor(has_files=True)
    editor.files[str(notes)] = "one\ntwo\nunsaved\n"
    await _prompted(tmp_path, editor, calling(EDIT), said("Done."), then="/undo")
    assert "As before:" in editor.text
    assert notes.read_text(encoding="utf-8") == "one\ntwo\nunsaved\n"


async def test_what_the_editors_formatter_made_of_a_file_is_taken_back_too(tmp_path, notes):
    editor = FakeEditor(has_files=True)
    editor.format = lambda text: text.upper()
    await _prompted(tmp_path, editor, calling(EDIT), said("Done."), then="/undo")
    assert editor.written == [(str(notes), "one\n2\n")]
    assert notes.read_text(encoding="utf-8") == "one\ntwo\n"


async def test_a_new_file_is_made_by_the_editor(tmp_path, notes):
    editor = FakeEditor(has_files=True)
    await _prompted(tmp_path, editor, calling(call(3, "write_file", path="new.txt", content="Hi\n")), said("Done."))
    assert editor.written == [(str(notes.parent / "new.txt"), "Hi\n")]


async def test_without_the_capability_the_disk_is_read_and_written(tmp_path, notes):
    editor = FakeEditor()
    editor.files[str(notes)] = "something else"
    await _prompted(tmp_path, editor, calling(EDIT), said("Done."))
    assert (editor.written, notes.read_text(encoding="utf-8")) == ([], "one\n2\n")


async def test_what_an_editor_refuses_to_write_is_not_written_behind_its_back(tmp_path, notes):
    editor = FakeEditor(has_files=True)
    editor.refuses = True
    client = await _prompted(tmp_path, editor, calling(EDIT), said("Sorry."))
    assert "The editor did not write notes.txt." in client.requests[1][-1].content
    assert notes.read_text(encoding="utf-8") == "one\ntwo\n"


async def test_an_editor_that_only_reads_leaves_saved_files_to_us_and_keeps_its_unsaved_ones(tmp_path, notes):
    editor = FakeEditor(has_files=True)
    editor.capabilities.fs.write_text_file = False
    await _prompted(tmp_path, editor, calling(EDIT), said("Done."))
    assert notes.read_text(encoding="utf-8") == "one\n2\n"
    editor.files[str(notes)] = "one\ntwo\nunsaved\n"
    client = await _prompted(tmp_path, editor, calling(EDIT), said("Sorry."))
    assert "has unsaved text in the editor. Save it there." in client.requests[1][-1].content
    assert notes.read_text(encoding="utf-8") == "one\n2\n"


async def test_a_file_that_is_not_utf_8_stays_out_of_the_editor(tmp_path, notes):
    notes.write_bytes("one\ntwo é\n".encode("latin-1"))
    editor = FakeEditor(has_files=True)
    editor.files[str(notes)] = "one\ntwo �\n"
    await _prompted(tmp_path, editor, calling(EDIT), said("Done."))
    assert (editor.written, notes.read_bytes()) == ([], "one\n2 é\n".encode("latin-1"))


async def test_line_endings_of_the_disk_are_kept(tmp_path, notes):
    notes.write_bytes(b"one\r\ntwo\r\n")
    editor = FakeEditor(has_files=True)
    editor.files[str(notes)] = "one\ntwo\n"
    await _prompted(tmp_path, editor, calling(EDIT), said("Done."))
    assert editor.written == [(str(notes), "one\r\n2\r\n")]
