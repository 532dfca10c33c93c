"""What an MCP server of an editor asks the person to fill in there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.acp.forms import form_request, form_values
from app.tools.server_requests import read_form
from tests.app.acp.editors import FakeEditor, asks, opened_editor
from tests.app.chat.tool_chats import call, calling, said, unbatched
from tests.app.client.scripted_client import ScriptedClient

__all__ = ["unbatched"]

SERVER = Path(__file__).parents[1] / "tools" / "mcp" / "hostile_server.py"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2, "maxLength": 9, "default": "Ada"},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "score": {"type": "number"},
        "agrees": {"type": "boolean"},
        "colour": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]},
        "sizes": {"type": "array", "items": {"type": "string", "enum": ["s", "m"]}, "maxItems": 2},
    },
    "required": ["name"],
}
FORM = read_form("shop", "Who are you?", SCHEMA)


def test_a_form_of_a_server_is_a_form_of_the_protocol():
    request = form_request("s1", FORM).model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    assert (request["mode"], request["message"], request["sessionId"]) == ("form", "shop: Who are you?", "s1")
    fields = request["requestedSchema"]["properties"]
    assert request["requestedSchema"]["required"] == ["name"]
    assert fields["name"] == {
        "type": "string", "title": "Your name", "minLength": 2, "maxLength": 9, "default": "Ada",
    }  # fmt: skip
    assert fields["age"] == {"type": "integer", "title": "age", "minimum": 1, "maximum": 99}
    assert fields["agrees"]["type"] == "boolean"
    assert fields["colour"]["oneOf"] == [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]
    assert fields["sizes"]["items"] == {"anyOf": [{"const": "s", "title": "s"}, {"const": "m", "title": "m"}]}


FILLED: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"name": "Ada"}, {"name": "Ada"}),
    (
        {"name": "Ada", "age": 36, "score": 1.5, "agrees": False, "colour": "g", "sizes": ["s", "m"]},
        {"name": "Ada", "age": 36, "score": 1.5, "agrees": False, "colour": "g", "sizes": ["s", "m"]},
    ),
    ({}, None),
    ({"name": "Ada", "age": 200}, None),
    ({"name": "Ada", "age": "old"}, None),
    ({"name": "Ada", "colour": "blue"}, None),
    ({"name": ["x"] * 99}, None),
]


@pytest.mark.parametrize(("content", "values"), FILLED)
def test_what_a_field_does_not_take_is_no_answer(content, values):
    assert form_values(FORM, content) == values


FORMS = [
    (True, {"colour": "green"}, {"action": "accept", "content": {"colour": "green"}}),
    (True, {"colour": "blue"}, "decline"),
    (True, None, "decline"),
    (False, {"colour": "green"}, "decline"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("has_forms", "content", "answer"), FORMS)
async def test_a_server_of_the_editor_asks_the_person_there(tmp_path, has_forms, content, answer):
    client, editor = ScriptedClient(calling(call(1, "asks__call")), said("Done.")), FakeEditor(has_forms=has_forms)
    editor.content = content
    async with opened_editor(client, editor, tmp_path) as connection:
        server = {"name": "asks", "command": sys.executable, "args": [str(SERVER), "asks with a form"], "env": []}
        new = {"cwd": str(tmp_path), "mcpServers": [server]}
        session_id = (await connection._conn.send_request("session/new", new))["sessionId"]
        await connection.prompt(session_id=session_id, prompt=asks("Do it."))
    assert [asked.title for asked, _ in editor.asked] == ["asks: call", "asks to ask you"]
    (told,) = [message.content for message in client.requests[1] if message.role == "tool"]
    assert json.loads(told)["action"] == (answer if isinstance(answer, str) else answer["action"])
    if not isinstance(answer, str):
        assert json.loads(told) == answer
