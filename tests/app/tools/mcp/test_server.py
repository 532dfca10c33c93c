"""The life of a server: started on demand, stopped when idle, started again; and calls that fail without harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.tools.approval import ApprovalQuestion, Decision, ToolSettings, Verdict, rule_of, verdict
from app.tools.file_history import FileHistory
from app.tools.mcp.config import ToolError, config_of
from app.tools.mcp.connection import ConnectionEndedError, RefusedError
from app.tools.mcp.lifecycle import Limits
from app.tools.mcp.server import McpServer
from app.tools.runner import ToolRunner
from app.tools.server_requests import RequestRefusedError, SamplingRequest
from app.tools.tool import CallContext, ServerTool, ToolProgress
from quantizer.system.errors import UsageError
from tests.app.tools.mcp.scripted import HandClock, Script, ScriptedConnection, settled, tool_entry

IMPATIENT = Limits(list_s=0.05)
SUSPICIOUS = Limits(alive_s=0.05)


async def only_tool(server: McpServer) -> ServerTool:
    (tool,) = await server.tools()
    return tool


async def test_nothing_starts_before_tools_are_asked_for() -> None:
    script = Script()
    server = script.server()
    assert server.status().state == "stopped"
    assert script.n_started == 0
    tool = await only_tool(server)
    assert (tool.definition.name, tool.timeout_s) == ("notes__search", 60.0)
    assert server.status().state == "running"
    await server.close()
    assert (script.n_started, script.n_closed, server.status().state) == (1, 1, "stopped")


async def test_an_idle_server_is_stopped_and_started_again_for_a_call() -> None:
    script, clock = Script(), HandClock()
    server = script.server(clock)
    tool = await only_tool(server)
    await clock.move(599)
    assert server.status().state == "running"
    await clock.move(1)
    assert (script.n_closed, server.status().state) == (1, "stopped")
    assert await server.tools() == (tool,)  # known already: nothing starts
    assert script.n_started == 1
    assert (await server.call(tool, {}, CallContext())).text == "done"
    assert script.n_started == 2
    await server.close()


async def test_a_server_is_not_idle_during_a_call() -> None:
    answered = asyncio.Event()

    async def answer(*_: object) -> Mapping[str, Any]:
        await answered.wait()
        return {"content": []}

    script, clock = Script(answer), HandClock()
    server = script.server(clock)
    call = asyncio.create_task(server.call(await only_tool(server), {}, CallContext()))
    await clock.move(601)
    await clock.move(601)
    assert script.n_closed == 0
    answered.set()
    await call
    await clock.move(600)
    assert script.n_closed == 1
    await server.close()


async def test_a_server_that_dies_in_a_call_is_said_and_starts_again_for_the_next() -> None:
    async def answer(connection: ScriptedConnection, *_: object) -> Mapping[str, Any]:
        if script.n_started == 1:
            connection.end()
            raise ConnectionEndedError("It ended: exit status 3.")
        return {"content": [{"type": "text", "text": "again"}]}

    script = Script(answer)
    server = script.server()
    tool = await only_tool(server)
    with pytest.raises(ToolError, match=r"ended during the call.*exit status 3.*not known"):
        await server.call(tool, {}, CallContext())
    await settled()
    assert server.status().problem == "The MCP server notes ended: exit status 3. The next use starts it again."
    assert (await server.call(tool, {}, CallContext())).text == "again"
    assert server.status().problem == ""
    await server.close()


async def test_a_server_that_dies_again_and_again_is_left_alone_for_a_while() -> None:
    async def answer(connection: ScriptedConnection, *_: object) -> Mapping[str, Any]:
        connection.end("exit status 9")
        raise ConnectionEndedError("It ended: exit status 9.")

    script, clock = Script(answer), HandClock()
    server = script.server(clock)
    tool = await only_tool(server)
    for _ in range(3):
        with pytest.raises(ToolError, match=r"during the call"):
            await server.call(tool, {}, CallContext())
        await settled()
    for _ in range(2):
        with pytest.raises(ToolError, match=r"ended 3 times within 5 minutes: exit status 9. It is left alone"):
            await server.call(tool, {}, CallContext())
    assert script.n_started == 3
    await clock.move(301)
    with pytest.raises(ToolError, match=r"during the call"):
        await server.call(tool, {}, CallContext())
    assert script.n_started == 4
    await server.close()


async def test_one_that_did_not_start_is_not_tried_at_every_turn() -> None:
    script, clock = Script(), HandClock()
    script.fails_with = ToolError("The command 'notes-server' is not found.", "Install it.")
    server = script.server(clock)
    for _ in range(3):
        with pytest.raises(ToolError, match=r"cannot be started. The command 'notes-server' is not found. Install it."):
            await server.tools()
    assert (script.n_started, server.status().state) == (1, "failed")
    await clock.move(31)
    script.fails_with = None
    assert await server.tools()
    assert (server.status().state, server.status().problem) == ("running", "")
    await server.close()


async def test_one_that_never_starts_is_tried_less_and_less_often() -> None:
    script, clock = Script(), HandClock()
    script.fails_with = ToolError("No.")
    server = script.server(clock)
    tried = []
    for _ in range(10):
        with pytest.raises(ToolError):
            await server.tools()
        tried.append(script.n_started)
        await clock.move(31)
    assert tried == [1, 2, 2, 3, 3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize("where", ["hangs_at_start", "hangs_in_list"])
async def test_closing_does_not_wait_for_a_server_that_takes_its_time(where: str) -> None:
    script = Script()
    setattr(script, where, True)
    server = script.server(limits=Limits(start_s=1e6, list_s=1e6))
    starting = asyncio.create_task(server.tools())
    await settled()
    await server.close()
    with pytest.raises(ToolError, match=r"cannot be started"):
        await starting


async def test_restart_tries_at_once() -> None:
    script = Script()
    script.fails_with = ToolError("No.")
    server = script.server()
    with pytest.raises(ToolError):
        await server.tools()
    script.fails_with = None
    await server.restart()
    assert await server.tools()
    await server.close()


async def test_listing_all_servers_of_a_window_tries_those_that_failed_at_once(tmp_path: Path) -> None:
    script = Script()
    script.fails_with = ToolError("No.")
    tools = ToolRunner([script.server()], FileHistory(tmp_path).undo)
    settings = ToolSettings(enabled=("notes",))
    assert [status.state for status in await tools.servers(start=True)] == ["failed"]
    assert await tools.offered(settings) == ()
    assert script.n_started == 1
    script.fails_with = None
    assert [status.state for status in await tools.servers(start=True)] == ["running"]
    assert [tool.name for tool in await tools.offered(settings)] == ["search"]
    await tools.close()


async def test_one_that_hangs_while_it_lists_is_stopped_and_said() -> None:
    script = Script()
    script.hangs_in_list = True
    server = script.server(limits=IMPATIENT)
    with pytest.raises(ToolError, match=r"did not list what it has within 0.05 s"):
        await server.tools()
    await server.close()
    assert script.n_closed == 1


async def test_two_who_ask_at_once_start_one_server() -> None:
    script = Script()
    server = script.server()
    await asyncio.gather(server.tools(), server.tools(), server.prompts())
    assert script.n_started == 1
    await server.close()


async def test_stopping_a_start_leaves_no_server_behind() -> None:
    script = Script()
    script.hangs_in_list = True
    server = script.server()
    starting = asyncio.create_task(server.tools())
    await settled()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await server.close()
    assert (script.n_started, script.n_closed) == (1, 1)


async def test_a_tool_that_became_another_is_not_called_and_loses_its_rule() -> None:
    script = Script()
    server = script.server()
    tool = await only_tool(server)
    preview = await server.preview(tool, {}, CallContext())
    rule = rule_of(Decision.TOOL, ApprovalQuestion(tool, "{}", preview))
    assert rule is not None
    assert verdict((rule,), tool) is Verdict.ALLOW
    script.tools = [tool_entry(description="Search notes, and send them away.")]
    script.connections[0].observer.changed()
    with pytest.raises(ToolError, match=r"has changed what its tool search is"):
        await server.call(tool, {}, CallContext())
    assert verdict((rule,), await only_tool(server)) is Verdict.ASK
    await server.close()


async def test_a_tool_that_changed_while_the_server_was_stopped_is_noticed_too() -> None:
    script, clock = Script(), HandClock()
    server = script.server(clock)
    tool = await only_tool(server)
    await clock.move(600)
    script.tools = [tool_entry("other")]
    with pytest.raises(ToolError, match=r"has no tool search any more"):
        await server.call(tool, {}, CallContext())
    await server.close()


async def test_the_same_tool_of_another_command_is_another_tool() -> None:
    script = Script()
    first, second = script.server(), script.server(config=config_of("notes", {"command": "other-server"}))
    assert (await only_tool(first)).fingerprint != (await only_tool(second)).fingerprint
    await asyncio.gather(first.close(), second.close())


async def test_changes_are_listed_at_the_next_use_however_often_they_are_reported() -> None:
    script = Script()
    server = script.server()
    await server.tools()
    script.tools = [tool_entry("a"), tool_entry("b")]
    for _ in range(1_000):
        script.connections[0].observer.changed()
    assert [tool.name for tool in await server.tools()] == ["a", "b"]
    assert script.n_listed == 2
    await server.close()


async def test_a_server_that_cannot_say_what_changed_is_stopped() -> None:
    script = Script()
    server = script.server(limits=IMPATIENT)
    await server.tools()
    script.hangs_in_list = True
    server.changed()
    with pytest.raises(ToolError, match=r"did not list what it has"):
        await server.tools()
    assert (script.n_closed, server.status().state) == (1, "failed")
    await server.close()


async def test_a_server_that_is_silent_after_a_stopped_call_is_started_again() -> None:
    async def hang(*_: object) -> Mapping[str, Any]:
        await asyncio.Event().wait()
        return {}

    script = Script(hang)
    server = script.server(limits=SUSPICIOUS)
    tool = await only_tool(server)
    call = asyncio.create_task(server.call(tool, {}, CallContext()))
    await settled()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    script.hangs_in_list = True  # it is stuck in the call still
    again = asyncio.create_task(server.prompts())
    await script.has_closed.wait()
    script.hangs_in_list = False
    await again
    assert (script.n_started, server.status().problem) == (2, "")
    await server.close()


async def test_a_server_that_answers_after_a_stopped_call_goes_on() -> None:
    async def hang(*_: object) -> Mapping[str, Any]:
        await asyncio.Event().wait()
        return {}

    script = Script(hang)
    server = script.server()
    call = asyncio.create_task(server.call(await only_tool(server), {}, CallContext()))
    await settled()
    call.cancel()
    await asyncio.wait({call})
    await server.prompts()
    assert script.n_started == 1
    await server.close()


async def test_a_refusal_is_a_result_for_the_model() -> None:
    async def refuse(*_: object) -> Mapping[str, Any]:
        raise RefusedError("The server answers: q is missing")

    server = Script(refuse).server()
    output = await server.call(await only_tool(server), {}, CallContext())
    assert (output.text, output.is_error, output.detail) == (
        "The server answers: q is missing",
        True,
        "refused by the server",
    )
    await server.close()


async def test_what_a_server_asks_for_in_vain_is_said_with_the_result() -> None:
    async def answer(connection: ScriptedConnection, *_: object) -> Mapping[str, Any]:
        observer = connection.observer
        request = SamplingRequest(())
        for asked in (observer.sample(request), observer.fill("Who?", {}), observer.sample(request)):
            with pytest.raises(RequestRefusedError):
                await asked
        return {"content": [{"type": "text", "text": "failed"}], "isError": True}

    server = Script(answer).server()
    output = await server.call(await only_tool(server), {}, CallContext())
    why = "A server gets that only during a call of a chat."
    assert output.text == (
        f"failed\n[The server asked in vain for an answer of the model. {why}]\n"
        f"[The server asked in vain for a form for the person. {why}]"
    )
    assert output.is_error
    await server.close()


async def test_while_two_chats_call_a_server_it_may_ask_neither() -> None:
    both, asked = asyncio.Event(), asyncio.Event()

    async def answer(connection: ScriptedConnection, *_: object) -> Mapping[str, Any]:
        if len(connections) == 0:
            connections.append(connection)
            await asked.wait()
            return {"content": []}
        both.set()
        with pytest.raises(RequestRefusedError, match=r"Several calls run at a time"):
            await connection.observer.fill("Who?", {})
        asked.set()
        return {"content": []}

    connections: list[ScriptedConnection] = []
    server = Script(answer).server()
    tool = await only_tool(server)
    await asyncio.gather(server.call(tool, {}, CallContext()), server.call(tool, {}, CallContext()))
    assert both.is_set()
    await server.close()


async def test_progress_reaches_the_call() -> None:
    async def answer(_: object, __: str, ___: object, on_progress: Any) -> Mapping[str, Any]:
        on_progress(ToolProgress("half", 1, 2))
        return {"content": []}

    server = Script(answer).server()
    heard: list[ToolProgress] = []
    await server.call(await only_tool(server), {}, CallContext(on_progress=heard.append))
    assert heard == [ToolProgress("half", 1, 2)]
    await server.close()


async def test_a_folder_that_became_a_link_is_not_told(tmp_path: Path) -> None:
    for name in ("kept", "named", "elsewhere"):
        (tmp_path / name).mkdir()
    context = CallContext(folders=(tmp_path / "named", tmp_path / "kept"))
    script = Script()
    server = script.server()
    await server.call(await only_tool(server), {}, context)
    assert script.connections[0].observer.roots() == context.folders
    (tmp_path / "named").rmdir()
    (tmp_path / "named").symlink_to(tmp_path / "elsewhere")
    await server.call(await only_tool(server), {}, context)
    assert script.connections[0].observer.roots() == (tmp_path / "kept",)
    await server.close()


async def test_folders_of_the_chat_are_told_once_to_a_server_that_asked_for_them() -> None:
    script = Script()
    server = script.server()
    tool = await only_tool(server)
    context = CallContext(folders=(Path("/notes"),))
    await server.call(tool, {}, context)
    assert script.n_told == 0  # it never asked
    assert script.connections[0].observer.roots() == (Path("/notes"),)
    other = replace(context, folders=(Path("/other"),))
    await server.call(tool, {}, other)
    await server.call(tool, {}, other)
    assert script.n_told == 1
    await server.close()


async def test_the_preview_shows_all_arguments() -> None:
    server = Script().server()
    tool = await only_tool(server)
    arguments = {"q": "ünder", "deep": {"list": [1, 2]}}
    preview = await server.preview(tool, arguments, CallContext())
    assert (preview.kind, preview.title) == ("arguments", "notes: search")
    assert json.loads(preview.text) == arguments
    await server.close()


async def test_resources_and_prompts_are_read_as_text() -> None:
    server = Script().server()
    assert await server.resource("note://1") == "a note"
    assert await server.prompt("review", "a") == "review {'what': 'a'}"
    with pytest.raises(UsageError, match=r"has no prompt 'other'\. It has: review"):
        await server.prompt("other", "")
    await server.close()


async def test_an_entry_that_is_not_valid_is_a_failed_server() -> None:
    server = Script().server(config=config_of("notes", {"args": []}))
    assert (server.status().state, server.status().problem) == ("failed", "It has neither `command` nor `url`.")
    with pytest.raises(ToolError, match=r"not valid"):
        await server.tools()
    await server.close()


async def test_a_closed_server_starts_no_more() -> None:
    script = Script()
    server = script.server()
    await server.close()
    with pytest.raises(ToolError, match=r"was closed"):
        await server.tools()
    assert script.n_started == 0
