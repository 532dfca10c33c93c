"""What is typed after a slash in an editor."""

from __future__ import annotations

from typing import Any

import pytest
from acp import resource_link_block, text_block
from acp.exceptions import RequestError

from app.acp.commands import COMMANDS, available_commands, command_line
from app.protocol.library import LocalModel
from quantizer.system.errors import UsageError
from tests.app.acp.editors import FakeEditor, asks, opened_editor
from tests.app.chat.tool_chats import said, unbatched
from tests.app.client.scripted_client import ScriptedClient

__all__ = ["unbatched"]

LINES: list[tuple[list[Any], tuple[str, str] | None]] = [
    (asks("/model qwen 4b"), ("model", "qwen 4b")),
    (asks("  /UNDO  "), ("undo", "")),
    (asks("/prompt explain\nall of\nit"), ("prompt", "explain\nall of\nit")),
    (asks("/prompt explain x\ny"), ("prompt", "explain x\ny")),
    (asks("/etc/hosts is what?"), None),
    (asks("/"), None),
    (asks("/ model"), None),
    (asks("What is /model?"), None),
    ([resource_link_block("x", "file:///x"), text_block("/model")], None),
    ([], None),
]


@pytest.mark.parametrize(("blocks", "found"), LINES)
def test_a_command_is_one_word_after_a_slash_at_the_beginning(blocks, found):
    line = command_line(blocks)
    assert (line is None) == (found is None)
    if found is not None:
        assert line == (COMMANDS[found[0]], found[1])


def test_an_unknown_command_is_refused_with_those_that_there_are():
    with pytest.raises(UsageError, match=r"There is no command /modle\. Commands: /model, /tools"):
        command_line(asks("/modle"))


def test_each_command_is_offered_with_what_follows_it():
    offered = {command.name: command for command in available_commands()}
    assert list(offered) == list(COMMANDS)
    assert offered["model"].input.root.hint == "NAME"
    assert offered["undo"].input is None


async def test_commands_are_announced_to_a_new_session_and_say_what_they_did(tmp_path):
    client, editor = ScriptedClient(said("One."), said("Two.")), FakeEditor()
    client.library.here = [LocalModel(id="qwen", where="library", path="/m/qwen.gguf", n_bytes=1)]
    async with opened_editor(client, editor, tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await editor.until(lambda: editor.of_kind("available_commands_update"))
        said_of = {
            "/model": "Models:\n- qwen",
            "/model qwen": "qwen answers from now on.",
            "/tools off all": "No tools are on in this chat.",
            "/system Be brief.": "System prompt: Be brief.",
            "/options temperature=0.2": "temperature 0.2",
            "/think low": "Thinking: low.",
            "/preset": "/preset NAME, one of:",
            "/prompt": "/prompt NAME, one of:",
            "/undo": "There is nothing to take back.",
            "/redo": "Nothing was taken back",
        }
        for typed, text in said_of.items():
            editor.updates.clear()
            await connection.prompt(session_id=session_id, prompt=asks(typed))
            assert text in editor.text, typed
        for typed, text in (
            ("/retry", "There is no question yet"),
            ("/continue", "There is no unfinished answer"),
            ("/prompt explain", r"\{\{has programmed"),
        ):
            with pytest.raises(RequestError, match=text):
                await connection.prompt(session_id=session_id, prompt=asks(typed))
        editor.updates.clear()
        await connection.prompt(session_id=session_id, prompt=asks("/prompt explain a child\nWhat is rain?"))
        assert editor.text == "One."
        await connection.prompt(session_id=session_id, prompt=asks("/retry"))
        assert editor.text == "One.Two."
        await connection.prompt(session_id=session_id, prompt=asks("/undo"))
        assert "Took the last question and its answer back." in editor.text
    question = client.requests[0][-1].content
    assert question.startswith("Explain the following to somebody who a child.")
    assert question.endswith("What is rain?")


async def test_a_prompt_of_an_mcp_server_is_shown_and_asked(tmp_path, monkeypatch):
    async def prompt(_: object, server: str, name: str, arguments: str) -> str:
        return f"{server} {name} {arguments}\x1b[2J"

    monkeypatch.setattr("app.tools.lazy.LazyTools.prompt", prompt)
    client, editor = ScriptedClient(said("Reviewed.")), FakeEditor()
    async with opened_editor(client, editor, tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await connection.prompt(session_id=session_id, prompt=asks("/prompt notes/review what=this"))
    assert editor.text == "```\nnotes review what=this\n```\n\nReviewed."
    assert client.requests[0][-1].content == "notes review what=this"
