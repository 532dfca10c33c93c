"""Sessions of an editor: chats that are asked, cancelled, listed and opened again."""

from __future__ import annotations

import asyncio
import re
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from acp.exceptions import RequestError

from app.chat.conversation import ChatSettings, MessageContent, MessageState
from app.chat.store.chat_store import ChatStore
from app.common.extras import MCP
from app.protocol.library import LocalModel
from app.tools.approval import ToolSettings
from quantizer.system.errors import EngineError
from tests.app.acp.editors import FakeEditor, asks, opened_editor
from tests.app.chat.tool_chats import said, unbatched
from tests.app.client.scripted_client import COMPLETED, READY, ScriptedClient, ScriptedReply

__all__ = ["unbatched"]


async def test_a_prompt_is_answered_in_chunks_and_stored_as_a_chat(tmp_path):
    client, editor = ScriptedClient(ScriptedReply(thoughts=("Hm.",), deltas=("Good ", "day."))), FakeEditor()
    async with opened_editor(client, editor, tmp_path) as connection:
        session = await connection.new_session(cwd=str(tmp_path), mcp_servers=[])
        answered = await connection.prompt(session_id=session.session_id, prompt=asks("Hello?"))
        await editor.until(lambda: editor.of_kind("session_info_update"))
    assert answered.stop_reason == "end_turn"
    assert (editor.text, editor.thoughts) == ("Good day.", "Hm.")
    with ChatStore(tmp_path) as store:
        (chat,) = store.chats.page()
        assert chat.title == "Hello?"
        assert chat.settings.tools.folders == (str(tmp_path),)
        assert [message.content for message in store.transcripts.read(chat.id).branch] == ["Hello?", "Good day."]


async def test_a_chat_is_loaded_with_its_history_and_resumed_without(tmp_path):
    replies = (ScriptedReply(thoughts=("Hm.",), deltas=("Good day.",)), said("Once more."))
    editor = FakeEditor()
    async with opened_editor(ScriptedClient(*replies), editor, tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await connection.prompt(session_id=session_id, prompt=asks("Hello?"))
    reader, client = FakeEditor(), ScriptedClient(replies[1])
    async with opened_editor(client, reader, tmp_path) as connection:
        loaded = await connection.load_session(cwd=str(tmp_path), session_id=session_id, mcp_servers=[])
        assert [update.session_update for _, update in reader.updates][:3] == [
            "user_message_chunk",
            "agent_thought_chunk",
            "agent_message_chunk",
        ]
        assert (reader.text, reader.thoughts) == ("Good day.", "Hm.")
        assert loaded.modes.current_mode_id == "ask"
        reader.updates.clear()
        await connection.resume_session(cwd=str(tmp_path), session_id=session_id, mcp_servers=[])
        await connection.prompt(session_id=session_id, prompt=asks("And now?"))
    assert reader.text == "Once more."
    assert not reader.of_kind("user_message_chunk")
    assert [message.role for message in client.requests[0]] == ["user", "assistant", "user"]
    with ChatStore(tmp_path) as store:
        assert len(store.chats.page()) == 1


async def test_chats_of_the_app_are_listed_by_folder_and_page_and_can_be_opened(tmp_path, monkeypatch):
    monkeypatch.setattr("app.acp.agent._N_LISTED", 3)
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    with ChatStore(tmp_path) as store:
        for number in range(5):
            tools = ToolSettings(folders=(str(here),) if number < 4 else (str(elsewhere),))
            chat = store.chats.create(title=f"Chat {number}", settings=ChatSettings(tools=tools))
            store.messages.add(chat.id, None, MessageContent(role="user", content=f"Question {number}"))
    editor = FakeEditor()
    async with opened_editor(ScriptedClient(), editor, tmp_path) as connection:
        everything = await connection.list_sessions()
        first = await connection.list_sessions(cwd=str(here))
        second = await connection.list_sessions(cwd=str(here), cursor=first.next_cursor)
        assert everything.sessions[0].title == "Chat 4"
        assert [len(first.sessions), len(second.sessions)] == [3, 1]
        assert (second.sessions[0].title, second.next_cursor) == ("Chat 0", None)
        oldest = second.sessions[0]
        await connection.load_session(cwd=oldest.cwd, session_id=oldest.session_id, mcp_servers=[])
        assert editor.of_kind("user_message_chunk")[0].content.text == "Question 0"


async def test_a_cancelled_answer_is_stored_as_far_as_it_came(tmp_path):
    client, editor = ScriptedClient(ScriptedReply(deltas=("Begun", "never"), pause_after=1)), FakeEditor()
    async with opened_editor(client, editor, tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        answering = asyncio.create_task(connection.prompt(session_id=session_id, prompt=asks("Go.")))
        await editor.until(lambda: editor.text)
        await connection.cancel(session_id=session_id)
        assert (await answering).stop_reason == "cancelled"
        await connection.cancel(session_id=session_id)  # nothing runs: nothing happens
    with ChatStore(tmp_path) as store:
        _, answer = store.transcripts.read(store.chats.page()[0].id).branch
    assert (answer.content, answer.state) == ("Begun", MessageState.PARTIAL)


async def test_an_editor_that_vanishes_loses_nothing_of_an_answer(tmp_path):
    client, editor = ScriptedClient(ScriptedReply(deltas=("Begun", "never"), pause_after=1)), FakeEditor()
    async with opened_editor(client, editor, tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        answering = asyncio.create_task(connection.prompt(session_id=session_id, prompt=asks("Go.")))
        await editor.until(lambda: editor.text)
    await asyncio.gather(answering, return_exceptions=True)
    with ChatStore(tmp_path) as store:
        assert store.transcripts.read(store.chats.page()[0].id).branch[-1].content == "Begun"


async def test_a_second_prompt_of_a_session_is_refused_while_another_session_answers(tmp_path):
    client, editor = (
        ScriptedClient(ScriptedReply(deltas=("Begun", "ended"), pause_after=1), said("Beside.")),
        FakeEditor(),
    )
    async with opened_editor(client, editor, tmp_path) as connection:
        first, second = [(await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id for _ in range(2)]
        answering = asyncio.create_task(connection.prompt(session_id=first, prompt=asks("Go.")))
        await editor.until(lambda: editor.text)
        with pytest.raises(RequestError, match="answers a prompt already"):
            await connection.prompt(session_id=first, prompt=asks("And this?"))
        assert (await connection.prompt(session_id=second, prompt=asks("Hello."))).stop_reason == "end_turn"
        client.resume()
        assert (await answering).stop_reason == "end_turn"
    told = [(session, update.content.text) for session, update in editor.updates if hasattr(update, "content")]
    assert "".join(text for session, text in told if session == first) == "Begunended"
    assert "".join(text for session, text in told if session == second) == "Beside."


async def test_what_ends_an_answer_is_an_error_with_a_remedy(tmp_path):
    failing = ScriptedReply(deltas=("Some",), ending=EngineError("The engine ended.", "Try again."))
    client, editor = ScriptedClient(failing, said("Better.")), FakeEditor()
    async with opened_editor(client, editor, tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        with pytest.raises(RequestError, match=r"The engine ended\. Try again\.") as failed:
            await connection.prompt(session_id=session_id, prompt=asks("Go."))
        assert failed.value.code == -32603
        await connection.prompt(session_id=session_id, prompt=asks("/retry"))
        assert editor.text == "SomeBetter."
        client_limit = replace(COMPLETED, finish_reason="length")
        client._replies = (ScriptedReply(deltas=("Much",), ending=client_limit),)
        cut = await connection.prompt(session_id=session_id, prompt=asks("More."))
    assert cut.stop_reason == "max_tokens"


BAD_REQUESTS = [
    ("session/new", {"cwd": "relative", "mcpServers": []}, -32602, "not the absolute path of a folder"),
    ("session/new", {"cwd": "/nowhere/at/all", "mcpServers": []}, -32602, "not the absolute path of a folder"),
    ("session/new", {"cwd": 5}, -32602, "The request is not valid: cwd: Input should be a valid string"),
    ("session/load", {"cwd": "/", "sessionId": "chat-7-7", "mcpServers": []}, -32002, "There is no session 'chat-7-7'"),
    ("session/prompt", {"sessionId": "none", "prompt": []}, -32002, "There is no session 'none'"),
    ("session/prompt", {"sessionId": "none", "prompt": [{"type": "x"}]}, -32602, "The request is not valid"),
    ("session/set_mode", {"sessionId": "none", "modeId": "ask"}, -32002, "There is no session"),
    ("session/list", {"cursor": "x"}, -32602, "The cursor is not one of this agent"),
    ("session/list", {"cursor": "77"}, -32602, "The chat of the cursor was deleted"),
    ("session/fork", {}, -32601, "Method not found"),
    ("nothing/at/all", [1], -32601, "Method not found"),
]


@pytest.mark.parametrize(("method", "params", "code", "text"), BAD_REQUESTS)
async def test_a_bad_request_is_answered_with_a_sentence(tmp_path, method, params, code, text):
    async with opened_editor(ScriptedClient(), FakeEditor(), tmp_path) as connection:
        with pytest.raises(RequestError, match=re.escape(text)) as refused:
            await connection._conn.send_request(method, params)
    assert refused.value.code == code


async def test_modes_and_options_that_do_not_exist_are_refused(tmp_path):
    client = ScriptedClient()
    client.library.here = [LocalModel(id="qwen", where="library", path="/m/qwen.gguf", n_bytes=1)]
    async with opened_editor(client, FakeEditor(), tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        for option, value, text in (
            ("colour", "red", "There is no option"),
            ("mode", "god", "Modes: ask, edit, auto"),
            ("model", "llama", "There is no local model llama"),
        ):
            with pytest.raises(RequestError, match=text):
                await connection.set_config_option(config_id=option, session_id=session_id, value=value)
        with pytest.raises(RequestError, match="There is no mode"):
            await connection.set_session_mode(session_id=session_id, mode_id="god")


async def test_model_mode_and_thinking_are_options_of_a_session(tmp_path):
    client, editor = ScriptedClient(model=replace(READY, thinks=True)), FakeEditor()
    client.library.here = [
        LocalModel(id="guide", where="built in", path="guide", n_bytes=1),
        LocalModel(id="qwen", where="library", path="/m/qwen.gguf", n_bytes=1),
    ]
    async with opened_editor(client, editor, tmp_path) as connection:
        session = await connection.new_session(cwd=str(tmp_path), mcp_servers=[])
        options = {option.id: option for option in session.config_options}
        assert [each.value for each in options["model"].options] == ["guide", "qwen"]
        assert options["model"].current_value == "guide"
        await connection.prompt(session_id=session.session_id, prompt=asks("Hello."))  # now the model is known
        changed = await connection.set_config_option(config_id="thinking", session_id=session.session_id, value="high")
        assert [(option.id, option.current_value) for option in changed.config_options] == [
            ("mode", "ask"),
            ("model", "guide"),
            ("thinking", "high"),
        ]
        await connection.set_config_option(config_id="model", session_id=session.session_id, value="qwen")
        await connection.set_config_option(config_id="mode", session_id=session.session_id, value="edit")
        assert editor.of_kind("current_mode_update")[-1].current_mode_id == "edit"
        await connection.prompt(session_id=session.session_id, prompt=asks("Hello again."))
    assert client.loads[-1] == "/m/qwen.gguf"
    assert client.options[-1].think == "high"


async def test_a_session_that_is_closed_is_there_no_more_but_its_chat_is(tmp_path):
    async with opened_editor(ScriptedClient(), FakeEditor(), tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await connection.prompt(session_id=session_id, prompt=asks("Hello."))
        await connection.close_session(session_id=session_id)
        with pytest.raises(RequestError, match="There is no session"):
            await connection.prompt(session_id=session_id, prompt=asks("Hello."))
        assert [each.session_id for each in (await connection.list_sessions()).sessions] == [session_id]


async def test_a_session_that_is_deleted_is_a_chat_that_can_be_restored(tmp_path):
    async def delete(connection, session_id):
        return await connection._conn.send_request("session/delete", {"sessionId": session_id})  # the package has none

    async with opened_editor(ScriptedClient(said("Hello.")), FakeEditor(), tmp_path) as connection:
        new = [(await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id for _ in range(2)]
        await connection.prompt(session_id=new[0], prompt=asks("Hi."))
        for session_id in new:
            assert await delete(connection, session_id) == {}
            with pytest.raises(RequestError, match="There is no session"):
                await connection.prompt(session_id=session_id, prompt=asks("Hi."))
            with pytest.raises(RequestError, match="There is no session"):
                await delete(connection, session_id)
        assert (await connection.list_sessions()).sessions == []
    with ChatStore(tmp_path) as store:
        (deleted,) = store.chats.deleted()
        assert len(store.messages.of(store.chats.restore(deleted.id).id)) == 2


async def test_a_new_session_leaves_the_apps_unsent_text(tmp_path):
    with ChatStore(tmp_path) as store:
        store.drafts.save(None, MessageContent(content="Half a thought"))
    async with opened_editor(ScriptedClient(), FakeEditor(), tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await connection.prompt(session_id=session_id, prompt=asks("Hello."))
    with ChatStore(tmp_path) as store:
        assert store.drafts.get(None).content == "Half a thought"


async def test_a_fault_of_ours_names_types_and_places_but_no_text_of_the_chat(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise ValueError("a secret")

    monkeypatch.setattr("app.acp.session.command_line", fail)
    async with opened_editor(ScriptedClient(), FakeEditor(), tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        with pytest.raises(RequestError, match="localllm has a fault here: ValueError at") as failed:
            await connection.prompt(session_id=session_id, prompt=asks("Hello."))
    assert "secret" not in str(failed.value)


@pytest.mark.slow
async def test_mcp_servers_of_the_editor_are_switched_on_and_invalid_ones_refused(tmp_path):
    client = ScriptedClient()
    async with opened_editor(client, FakeEditor(), tmp_path) as connection:
        new = {"cwd": str(tmp_path)}
        server = {"name": "My notes", "command": "/nowhere/notes", "args": [], "env": []}
        for servers, text in (
            ([{**server, "command": ""}], "neither `command` nor `url`"),
            ([server, server], "Two MCP servers are called"),
            ([{"type": "acp", "name": "x", "serverId": "y"}], "within the editor"),
        ):
            with pytest.raises(RequestError, match=text):
                await connection._conn.send_request("session/new", {**new, "mcpServers": servers})
        made = await connection._conn.send_request("session/new", {**new, "mcpServers": [server]})
        listed = await connection.prompt(session_id=made["sessionId"], prompt=asks("/tools"))
        assert listed.stop_reason == "end_turn"
        await connection.prompt(session_id=made["sessionId"], prompt=asks("Hello."))
    with ChatStore(tmp_path) as store:
        assert "My_notes" in store.chats.page()[0].settings.tools.enabled


async def test_mcp_servers_need_the_extra_and_are_left_out_with_a_sentence_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr("app.acp.agent.MCP", replace(MCP, module="no_such_module"))
    editor = FakeEditor()
    async with opened_editor(ScriptedClient(), editor, tmp_path) as connection:
        server = {"name": "notes", "command": "/nowhere/notes", "args": [], "env": []}
        new = {"cwd": str(tmp_path), "mcpServers": [server]}
        session_id = (await connection._conn.send_request("session/new", new))["sessionId"]
        await connection.prompt(session_id=session_id, prompt=asks("Hello."))
    assert "MCP servers need the extra `mcp`" in editor.thoughts


async def test_a_chat_under_its_two_names_is_open_once(tmp_path):
    async with opened_editor(ScriptedClient(), FakeEditor(), tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await connection.prompt(session_id=session_id, prompt=asks("Hello."))
        with ChatStore(tmp_path) as store:
            name = store.chats.page()[0].prompt_cache_key
        await connection.load_session(cwd=str(tmp_path), session_id=name, mcp_servers=[])
        with pytest.raises(RequestError, match="There is no session"):
            await connection.prompt(session_id=session_id, prompt=asks("Hello."))
        assert (await connection.prompt(session_id=name, prompt=asks("Hello."))).stop_reason == "end_turn"


async def test_a_command_after_a_failed_answer_does_not_fail_with_it(tmp_path):
    failing = ScriptedReply(deltas=("Some",), ending=EngineError("The engine ended.", "Try again."))
    editor = FakeEditor()
    async with opened_editor(ScriptedClient(failing), editor, tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        with pytest.raises(RequestError, match="The engine ended"):
            await connection.prompt(session_id=session_id, prompt=asks("Go."))
        await connection.prompt(session_id=session_id, prompt=asks("/compact"))
    assert "There is nothing to compact" in editor.text


async def test_a_session_that_was_not_asked_anything_yet_can_be_loaded(tmp_path):
    async with opened_editor(ScriptedClient(), FakeEditor(), tmp_path) as connection:
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await connection.load_session(cwd=str(tmp_path), session_id=session_id, mcp_servers=[])
        assert (await connection.prompt(session_id=session_id, prompt=asks("Hello."))).stop_reason == "end_turn"


async def test_no_model_is_loaded_before_a_session_needs_one_and_then_its_own(tmp_path):
    with ChatStore(tmp_path) as store:
        chat = store.chats.create(title="Old", model="qwen")
        store.messages.add(chat.id, None, MessageContent(role="user", content="Hello."))
    client = ScriptedClient()
    async with opened_editor(client, FakeEditor(), tmp_path) as connection:
        await connection.list_sessions()
        assert client.loads == []
        await connection.load_session(cwd=str(tmp_path), session_id=chat.prompt_cache_key, mcp_servers=[])
        await connection.prompt(session_id=chat.prompt_cache_key, prompt=asks("And now?"))
    assert set(client.loads) == {"qwen"}


# What Zed sends, from crates/agent_servers/src/acp.rs@0038d2e2, with fields of drafts that the package does not know.
ZED_INITIALIZE = {
    "protocolVersion": 1,
    "clientCapabilities": {
        "fs": {"readTextFile": True, "writeTextFile": True},
        "terminal": True,
        "auth": {"terminal": True},
        "session": {"configOptions": {"boolean": {}}, "compaction": {}, "notices": {}},
        "elicitation": {"form": {}, "url": {}},
        "_meta": {"terminal_output": True, "terminal-auth": True},
    },
    "clientInfo": {"name": "zed", "title": "Zed", "version": "0.220.0"},
}


@pytest.mark.parametrize("capabilities", [None, 5, [[]], {"fs": [None], "terminal": "x"}, {"fs": {"readTextFile": 3}}])
async def test_malformed_capabilities_are_none(tmp_path, capabilities):
    async with opened_editor(ScriptedClient(), FakeEditor(), tmp_path) as connection:
        send = connection._conn.send_request
        await send("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities})
        session_id = (await send("session/new", {"cwd": str(tmp_path), "mcpServers": []}))["sessionId"]
        assert (await connection.prompt(session_id=session_id, prompt=asks("/tools"))).stop_reason == "end_turn"


async def test_what_zed_sends_is_understood(tmp_path):
    async with opened_editor(ScriptedClient(), FakeEditor(), tmp_path) as connection:
        send = connection._conn.send_request
        found = await send("initialize", ZED_INITIALIZE)
        assert (found["protocolVersion"], found["authMethods"]) == (1, [])
        assert found["agentCapabilities"]["loadSession"]
        assert set(found["agentCapabilities"]["sessionCapabilities"]) == {
            "list",
            "resume",
            "close",
            "delete",
            "additionalDirectories",
        }
        other = tmp_path / "other"
        other.mkdir()
        folders = {"cwd": str(tmp_path), "additionalDirectories": [str(other)], "mcpServers": []}
        session_id = (await send("session/new", folders))["sessionId"]
        blocks = [
            {"type": "text", "text": "Look at "},
            {"type": "resource_link", "uri": other.as_uri(), "name": "other"},
            {"type": "resource", "resource": {"uri": "file:///a.py#L1:2", "text": "x = 1", "mimeType": "text/plain"}},
        ]
        assert await send("session/prompt", {"sessionId": session_id, "prompt": blocks}) == {"stopReason": "end_turn"}
        assert await send("session/close", {"sessionId": session_id}) == {}
    with ChatStore(tmp_path) as store:
        (chat,) = store.chats.page()
    assert chat.settings.tools.folders == (str(tmp_path), str(other))


async def test_no_request_however_wrong_is_a_fault_of_ours_or_ends_the_agent(tmp_path):
    random = Random(72)
    anything = [None, True, 0, -1, 1e300, "", "\0", "\ud800", "x" * 5000, [], {}, [[[]]], {"type": "text"}, [None]]
    async with opened_editor(ScriptedClient(), FakeEditor(), tmp_path) as connection:
        send = connection._conn.send_request
        session_id = (await connection.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        block, server = {"type": "text", "text": "Hello."}, {"name": "n", "command": "c", "args": [], "env": []}
        valid = {
            "initialize": ZED_INITIALIZE,
            "authenticate": {"methodId": "none"},
            "session/new": {"cwd": str(tmp_path), "mcpServers": [server]},
            "session/load": {"cwd": str(tmp_path), "mcpServers": [], "sessionId": session_id},
            "session/list": {"cwd": str(tmp_path), "cursor": None},
            "session/set_mode": {"sessionId": session_id, "modeId": "ask"},
            "session/set_config_option": {"sessionId": session_id, "configId": "mode", "value": "ask"},
            "session/prompt": {"sessionId": session_id, "prompt": [block]},
        }
        for _ in range(300):
            method = random.choice(list(valid))
            request = deepcopy(valid[method])
            place: Any = request
            while isinstance(place, dict) and place:
                key = random.choice(list(place))
                if random.random() < 0.5 or not isinstance(place[key], dict):
                    place[key] = random.choice(anything)
                    break
                place = place[key]
            (answer,) = await asyncio.gather(send(method, request), return_exceptions=True)
            assert "localllm has a fault" not in str(answer), (method, request)
        assert await send("session/prompt", valid["session/prompt"]) == {"stopReason": "end_turn"}
