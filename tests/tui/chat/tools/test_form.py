"""The form of a server that asks the person during a call: opened once they agreed, sent when right, or closed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from textual.widgets import Input

from app.protocol.chat import ToolCall
from app.tools.runner import ToolRunner
from tests.app.chat.tool_chats import calling, said
from tests.app.client.scripted_client import ScriptedClient
from tests.app.tools.mcp.scripted import Script, ScriptedConnection
from tui.chat.tools.calls import ApprovalPanel
from tui.chat.tools.form import FormDialog

pytestmark = pytest.mark.slow

FORM = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "title": "Your name"},
        "color": {"type": "string", "enum": ["red", "green"], "default": "red"},
    },
}


async def fills(connection: ScriptedConnection, *_: object) -> Mapping[str, Any]:
    return {"content": [{"type": "text", "text": str(await connection.observer.fill("Who are you?", FORM))}]}


async def agrees(user) -> None:
    await user.presses("tab")
    await user.until(lambda: user.app.screen.query_one(ApprovalPanel).is_armed, "Its keys do not count")
    await user.presses("y")


async def goes_to_the_form(user) -> None:
    await user.sees("ready")
    await user.asks("/tools on notes")
    await user.sees("1 tool on")
    await user.asks("Ask me.")
    await user.sees("Allow notes: search?")
    await agrees(user)
    await user.sees("Allow notes to ask you?", "Who are you?", "Your name: text", "The server gets what you answer")
    await agrees(user)
    await user.until(lambda: isinstance(user.app.screen, FormDialog), "No form is shown")


def app_of(open_app):
    client = ScriptedClient(calling(ToolCall("c", "notes__search", "{}")), said("Done."))
    return open_app(client, tools=ToolRunner([Script(fills).server()], lambda _: ()))


async def test_a_form_is_filled_in_field_by_field(open_app):
    async with app_of(open_app) as user:
        await goes_to_the_form(user)
        await user.sees("notes asks", "Your name", "color")
        assert [line.value for line in user.app.screen.query(Input)] == ["", "red"]
        await user.presses("enter")
        await user.sees("Your name must be filled in.")
        await user.presses("A", "d", "a", "enter", *["backspace"] * 3, *"blue", "enter")
        await user.sees("color must be one of: red, green")
        await user.presses(*["backspace"] * 4, *"green", "enter")
        await user.sees("✓ notes: search", "Done.")
        await user.presses("o")
    chat = user.app.app_context.session.chat
    (result,) = [message for message in chat.conversation.branch if message.role == "tool"]
    assert result.content == "{'name': 'Ada', 'color': 'green'}"


async def test_after_a_field_was_corrected_enter_sends_the_form(open_app):
    async with app_of(open_app) as user:
        await goes_to_the_form(user)
        await user.presses("tab", "enter")  # the last field is right, the first is empty
        await user.sees("Your name must be filled in.")
        await user.presses("A", "d", "a", "enter")
        await user.sees("✓ notes: search", "Done.")


async def test_escape_closes_the_form_and_the_server_gets_nothing(open_app):
    async with app_of(open_app) as user:
        await goes_to_the_form(user)
        await user.presses("escape")
        await user.sees("✓ notes: search", "Done.")
    (result,) = [m for m in user.app.app_context.session.chat.conversation.branch if m.role == "tool"]
    assert result.content == "None"
