"""Calls of tools in an editor: their titles, diffs and places, and who allows them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.store.chat_store import ChatStore
from app.protocol.chat import ToolCall
from app.tools.tool import ToolOutcome
from tests.app.acp.editors import FakeEditor, asks, opened_editor
from tests.app.chat.tool_chats import call, calling, said, unbatched
from tests.app.client.scripted_client import READY, ScriptedClient

__all__ = ["unbatched"]

EDIT = call(1, "edit_file", path="notes.txt", old_text="two", new_text="2")
WRITE = call(2, "write_file", path="new.txt", content="Hello\n")
RUN = call(3, "run_command", argv=["true"])
READ = call(4, "read_file", path="notes.txt", first_line=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    return folder


async def _prompted(connection, folder: Path, text: str = "Do it.") -> str:
    session_id = (await connection.new_session(cwd=str(folder), mcp_servers=[])).session_id
    await connection.prompt(session_id=session_id, prompt=asks(text))
    return session_id


async def test_a_change_is_asked_with_its_diff_and_made_once_it_is_allowed(tmp_path, folder):
    client, editor = ScriptedClient(calling(EDIT), said("Done.")), FakeEditor()
    async with opened_editor(client, editor, tmp_path) as connection:
        await _prompted(connection, folder)
    (asked, options) = editor.asked[0]
    assert asked.title == "edit notes.txt"
    assert [option.kind for option in options][:2] == ["allow_once", "allow_always"]
    assert {"reject_once", "reject_always"} < {option.kind for option in options}
    (words, diff) = asked.content
    assert "Adds 1 line and removes 1 line · files: edit_file" in words.content.text
    assert (diff.path, diff.old_text, diff.new_text) == (
        str(folder / "notes.txt"),
        "one\ntwo\nthree",
        "one\n2\nthree",
    )
    assert [(place.path, place.line) for place in asked.locations] == [(str(folder / "notes.txt"), 1)]
    (begun,) = editor.of_kind("tool_call")
    assert (begun.kind, begun.raw_input["new_text"]) == ("edit", "2")
    ended = editor.of_kind("tool_call_update")[-1]
    assert (ended.tool_call_id, ended.status) == (begun.tool_call_id, "completed")
    assert [content.type for content in ended.content] == ["diff"]
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "one\n2\nthree\n"
    assert editor.text == "Done."


async def test_a_call_that_is_rejected_does_not_run_and_the_model_goes_on(tmp_path, folder):
    client, editor = ScriptedClient(calling(WRITE), said("Sorry.")), FakeEditor(["deny"])
    async with opened_editor(client, editor, tmp_path) as connection:
        await _prompted(connection, folder)
    assert editor.of_kind("tool_call_update")[-1].status == "failed"
    assert editor.text == "Sorry."
    assert not (folder / "new.txt").exists()
    assert editor.asked[0][0].content[1].old_text is None  # a new file


async def test_always_and_never_are_rules_of_the_chat(tmp_path, folder):
    again = call(5, "write_file", path="other.txt", content="Hello\n")
    client = ScriptedClient(calling(WRITE, again), said("Done."), calling(RUN), calling(RUN), said("Stopped."))
    editor = FakeEditor(["tool", "never"])
    async with opened_editor(client, editor, tmp_path, tools=("files", "commands")) as connection:
        session_id = await _prompted(connection, folder)
        await connection.prompt(session_id=session_id, prompt=asks("Run it."))
    assert len(editor.asked) == 2
    with ChatStore(tmp_path) as store:
        rules = store.chats.page()[0].settings.tools.rules
    assert [(rule.scope, rule.tool, rule.is_denied) for rule in rules] == [
        ("tool", "write_file", False),
        ("tool", "run_command", True),
    ]


MODES = [
    ("ask", (READ,), 0),
    ("ask", (EDIT,), 1),
    ("edit", (EDIT, WRITE), 0),
    ("edit", (RUN,), 1),
    ("auto", (EDIT, RUN), 0),
]


@pytest.mark.parametrize(("mode", "calls", "n_asked"), MODES)
async def test_a_mode_allows_what_it_says_and_no_more(tmp_path, folder, mode, calls, n_asked):
    client, editor = ScriptedClient(calling(*calls), said("Done.")), FakeEditor()
    async with opened_editor(client, editor, tmp_path, tools=("files", "commands"), mode=mode) as connection:
        await _prompted(connection, folder)
    assert len(editor.asked) == n_asked
    assert {update.status for update in editor.of_kind("tool_call_update")[-1:]} == {"completed"}


async def test_what_leads_out_of_the_folder_or_to_the_network_is_asked_or_refused_in_every_mode(tmp_path, folder):
    outside = call(6, "write_file", path=str(tmp_path / "outside.txt"), content="x")
    fetched = call(7, "fetch_url", url="https://example.org/")
    client, editor = ScriptedClient(calling(outside, fetched), said("Done.")), FakeEditor(["deny"])
    async with opened_editor(client, editor, tmp_path, tools=("files", "web"), mode="auto") as connection:
        await _prompted(connection, folder)
    assert [asked.title for asked, _ in editor.asked] == ["fetch https://example.org/"]
    assert not (tmp_path / "outside.txt").exists()


async def test_a_mode_allows_nothing_in_folders_of_the_chat_that_the_editor_has_not_open(tmp_path, folder):
    other = tmp_path / "other"
    other.mkdir()
    outside = call(6, "write_file", path=str(other / "a.txt"), content="x")
    (folder / "link").symlink_to(other)
    linked = call(7, "write_file", path="link/b.txt", content="x")
    client, editor = ScriptedClient(calling(outside, linked, WRITE), said("Done.")), FakeEditor(["deny", "deny"])
    async with opened_editor(client, editor, tmp_path, mode="auto") as connection:
        session_id = (await connection.new_session(cwd=str(folder), mcp_servers=[])).session_id
        await connection.prompt(session_id=session_id, prompt=asks(f"/tools folder {other}"))
        await connection.prompt(session_id=session_id, prompt=asks("Go."))
    assert len(editor.asked) == 2
    assert (list(other.iterdir()), (folder / "new.txt").exists()) == ([], True)


async def test_a_refusal_of_the_chat_counts_before_the_mode(tmp_path, folder):
    client, editor = ScriptedClient(calling(EDIT), said("Sorry."), calling(EDIT), said("Sorry.")), FakeEditor(["never"])
    async with opened_editor(client, editor, tmp_path) as connection:
        session_id = await _prompted(connection, folder)
        await connection.set_session_mode(session_id=session_id, mode_id="auto")
        await connection.prompt(session_id=session_id, prompt=asks("Again."))
    assert len(editor.asked) == 1
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "one\ntwo\nthree\n"


async def test_an_editor_that_fails_to_ask_allows_nothing(tmp_path, folder):
    client, editor = ScriptedClient(calling(EDIT), said("Sorry.")), FakeEditor(["fails"])
    async with opened_editor(client, editor, tmp_path) as connection:
        await _prompted(connection, folder)
    assert editor.text == "Sorry."
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "one\ntwo\nthree\n"


async def test_an_answer_that_was_not_offered_is_a_no(tmp_path, folder):
    client, editor = ScriptedClient(calling(EDIT), said("Sorry.")), FakeEditor(["allow_everything"])
    async with opened_editor(client, editor, tmp_path) as connection:
        await _prompted(connection, folder)
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "one\ntwo\nthree\n"


async def test_cancelling_a_permission_stops_the_prompt_and_the_call_does_not_run(tmp_path, folder):
    client, editor = ScriptedClient(calling(EDIT), said("never")), FakeEditor(["cancelled"])
    async with opened_editor(client, editor, tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(folder), mcp_servers=[])).session_id
        ended = await connection.prompt(session_id=session_id, prompt=asks("Go."))
    assert ended.stop_reason == "cancelled"
    assert _stored_outcomes(tmp_path) == [ToolOutcome.CANCELLED]
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "one\ntwo\nthree\n"


async def test_an_editor_that_vanishes_while_it_asks_allows_nothing(tmp_path, folder):
    async def forever() -> str:
        await asyncio.Event().wait()
        return "once"

    client, editor = ScriptedClient(calling(EDIT), said("never")), FakeEditor([forever])
    async with opened_editor(client, editor, tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(folder), mcp_servers=[])).session_id
        prompting = asyncio.create_task(connection.prompt(session_id=session_id, prompt=asks("Go.")))
        await editor.until(lambda: editor.asked)
    await asyncio.gather(prompting, return_exceptions=True)
    assert _stored_outcomes(tmp_path) == [ToolOutcome.CANCELLED]
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "one\ntwo\nthree\n"


async def test_what_was_read_is_shown_with_its_place_and_again_when_the_chat_is_loaded(tmp_path, folder):
    client, editor = ScriptedClient(calling(READ), said("I see.")), FakeEditor()
    async with opened_editor(client, editor, tmp_path) as connection:
        session_id = await _prompted(connection, folder)
        ended = editor.of_kind("tool_call_update")[-1]
        assert "```\n[lines 2 to 3 of 3]\ntwo\nthree\n```" in ended.content[0].content.text
        assert [(place.path, place.line) for place in ended.locations] == [(str(folder / "notes.txt"), 2)]
        editor.updates.clear()
        await connection.load_session(cwd=str(folder), session_id=session_id, mcp_servers=[])
    (shown,) = editor.of_kind("tool_call")
    assert (shown.status, shown.kind, shown.content) == ("completed", "read", ended.content)


async def test_a_call_that_is_nested_without_end_ends_neither_the_prompt_nor_a_later_loading(tmp_path, folder):
    nested = ToolCall("c1", "read_file", '{"path": "notes.txt", "x": ' + "[" * 400 + "]" * 400 + "}")
    client, editor = ScriptedClient(calling(nested), said("Sorry.")), FakeEditor()
    async with opened_editor(client, editor, tmp_path) as connection:
        session_id = await _prompted(connection, folder)
        await connection.load_session(cwd=str(folder), session_id=session_id, mcp_servers=[])
    assert editor.text == "Sorry.Sorry."
    assert editor.of_kind("tool_call")[-1].status == "failed"


async def test_a_pause_after_many_rounds_ends_the_turn_and_continue_goes_on(tmp_path, folder):
    client, editor = ScriptedClient(calling(READ), said("Done.")), FakeEditor()
    async with opened_editor(client, editor, tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(folder), mcp_servers=[])).session_id
        await connection.prompt(session_id=session_id, prompt=asks("/tools rounds 1"))
        paused = await connection.prompt(session_id=session_id, prompt=asks("Go."))
        assert paused.stop_reason == "max_turn_requests"
        assert "Let it go on?" in editor.text
        await connection.prompt(session_id=session_id, prompt=asks("/continue"))
    assert editor.text.endswith("Done.")


async def test_what_the_service_reports_and_the_model_cannot_take_is_said_once(tmp_path, folder):
    model = replace(READY, takes_tools=False, notices=("The cache is full.",))
    client, editor = ScriptedClient(model=model), FakeEditor()
    async with opened_editor(client, editor, tmp_path) as connection:
        session_id = await _prompted(connection, folder)
        await connection.prompt(session_id=session_id, prompt=asks("Again."))
    assert editor.thoughts.count("The cache is full.") == 1
    assert editor.thoughts.count("they are written into its prompt") == 1


async def test_tools_that_nobody_chose_are_not_offered_to_a_model_without_a_place_for_them(tmp_path, folder):
    client, editor = ScriptedClient(model=replace(READY, takes_tools=False)), FakeEditor()
    async with opened_editor(client, editor, tmp_path, has_default_tools=True) as connection:
        session_id = await _prompted(connection, folder)
        assert "has no place for tools in its chat template" in editor.thoughts
        assert client.options[-1].tools == ()
        await connection.prompt(session_id=session_id, prompt=asks("/tools on files"))
        await connection.prompt(session_id=session_id, prompt=asks("Now."))
    assert client.options[-1].tools


def _stored_outcomes(data_dir: Path) -> list[ToolOutcome]:
    with ChatStore(data_dir) as store:
        branch = store.transcripts.read(store.chats.page()[0].id).branch
    return [message.result.outcome for message in branch if message.result is not None]
