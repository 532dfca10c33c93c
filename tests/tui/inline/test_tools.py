"""Tools in a chat in the scrollback: lines for calls, /tools, /undo, and one JSON object for a single answer."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.chat.repository import InMemoryChatRepository
from app.chat.tool_switches import RequestedTools
from app.cli.output.answer import calls_json
from app.connection import ServiceConnection
from app.protocol.chat import MediaPart
from app.tools.approval import Decision
from app.tools.backend import ToolBackend
from app.tools.runner import ToolRunner
from app.tools.tool import ToolOutput
from quantizer.system.errors import UsageError
from tests.app.chat.attachments.files import picture_of
from tests.app.chat.tool_chats import backend_of, call, calling, said, unbatched
from tests.app.client.scripted_client import ScriptedClient
from tests.app.tools.fake import ScriptedCall
from tests.app.tools.mcp.scripted import Script
from tui.chat.session import ChatSession
from tui.inline.chat import InlineChat
from tui.inline.scrollback import Scrollback

__all__ = ["unbatched"]


@asynccontextmanager
async def opened(client: ScriptedClient, tools: ToolBackend, folder: Path) -> AsyncIterator[InlineChat]:
    async with ServiceConnection(client.opened, "guide") as connection:
        session = ChatSession(connection, InMemoryChatRepository(), lambda: 0.0, tools=tools)
        chat = InlineChat(session, folder, Scrollback(), is_saved=False, shows_stats=False, folder=folder, tools=tools)
        await connection.client()
        yield chat
        await chat.close()


async def test_each_call_is_a_line_between_the_texts_of_the_answer(tmp_path, capsys):
    client = ScriptedClient(calling(call(1), call(2), text="Let me see."), said("Done."))
    async with opened(client, backend_of(), tmp_path) as chat:
        await chat.submit("/tools on fake")
        assert "3 tools on, 300 tokens of every prompt" in capsys.readouterr().err
        await chat.submit("Go.")
        printed = capsys.readouterr()
    assert printed.out == "Let me see.\nDone.\n"
    assert printed.err.count("✓ call read") == 2


async def test_a_call_that_nobody_can_allow_is_denied(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("app.cli.approval.sys.stdin", None)
    monkeypatch.setattr("app.cli.approval._TERMINAL", "/nowhere")
    tools = backend_of()
    async with opened(ScriptedClient(calling(call(1, "run")), said("Sorry.")), tools, tmp_path) as chat:
        await chat.use_tools(RequestedTools(enabled=("fake",)))
        await chat.submit("Go.")
    printed = capsys.readouterr()
    assert "--allow fake/run would allow it." in printed.err
    assert "⊘ call run · denied" in printed.err
    assert tools.server.called == []


async def test_options_allow_tools_by_name_and_unknown_names_are_refused(tmp_path, capsys):
    tools = backend_of()
    async with opened(ScriptedClient(calling(call(1, "run")), said("Done.")), tools, tmp_path) as chat:
        await chat.use_tools(RequestedTools(enabled=("fake",), allowed=("fake/run",), max_rounds=3))
        await chat.submit("Go.")
        assert [name for name, _ in tools.server.called] == ["run"]
        branch = chat.branch
        with pytest.raises(UsageError, match="nothing cannot be allowed"):
            await chat.use_tools(RequestedTools(allowed=("nothing",)))
    (made,) = calls_json(branch)
    assert (made["name"], made["outcome"], made["result"]) == ("run", "done", "done")
    capsys.readouterr()


@pytest.mark.slow
async def test_pictures_of_a_result_are_named_below_it_and_in_the_list_of_calls(tmp_path, capsys):
    picture = MediaPart("image/png", base64.b64encode(picture_of()).decode())
    tools = backend_of(read=[ScriptedCall(ToolOutput("[picture 1]", media=(picture,)))])
    async with opened(ScriptedClient(calling(call(1)), said("Red.")), tools, tmp_path) as chat:
        await chat.use_tools(RequestedTools(enabled=("fake",)))
        await chat.submit("Look.")
        (made,) = calls_json(chat.branch)
    assert "✓ call read [picture 1, 64 × 48, 141 B]" in capsys.readouterr().err
    assert [each["name"] for each in made["attachments"]] == ["picture 1"]


async def test_a_step_is_taken_back_and_done_again(tmp_path, capsys):
    tools = backend_of()
    async with opened(ScriptedClient(calling(call(1, "write")), said("Done.")), tools, tmp_path) as chat:
        await chat.use_tools(RequestedTools(enabled=("fake",), allowed=("fake",)))
        await chat.submit("Go.")
        await chat.submit("/undo")
        assert "Took back: call write. As before: /notes/a.txt." in capsys.readouterr().err
        assert len(tools.undone) == 1
        await chat.submit("/redo")
        assert "It is done again." in capsys.readouterr().err
        await chat.submit("/undo")
        await chat.submit("/undo")
        assert chat.begun == "Go."


async def test_prompts_and_resources_of_a_server_are_used_by_name(tmp_path, capsys):
    tools, client = ToolRunner([Script().server()], lambda _: ()), ScriptedClient(said("Done."), said("Again."))
    async with opened(client, tools, tmp_path) as chat:
        await chat.submit("/tools on notes")
        await chat.submit("/prompt")
        assert "Of MCP servers, with NAME=VALUE for their arguments: notes/review." in capsys.readouterr().err
        await chat.submit("/prompt notes/review the code")
        assert chat.begun == "review {'what': 'the code'}"
        await chat.submit("/prompt notes/other")
        assert "The MCP server notes has no prompt 'other'" in capsys.readouterr().err
        await chat.submit("/prompt other/review")
        assert "There is no MCP server 'other'. Servers: notes." in capsys.readouterr().err
        await chat.submit("What says @notes:note://1, and who is @ada:https://a.example?")
        assert "Attached notes:note://1, 6 characters." in capsys.readouterr().err
    (attachment,) = chat.branch[0].attachments
    assert (attachment.name, attachment.content) == ("notes:note://1", "a note")
    assert "a note" in client.requests[0][-1].content


def test_decisions_have_the_letters_of_the_full_screen():
    from app.tools.display import KEYS

    assert set(KEYS.values()) == set(Decision)
