"""A server that lists malformed tools costs these tools, never the answers of a chat that has the others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.chat import Tool
from app.service.http.routing import parse_object
from app.service.tools.parser import ToolOptions
from app.tools.mcp.listing import listed_tools
from tests.app.malformed_schemas import JSON, schemas
from tests.app.tools.mcp.scripted import tool_entry

_TEXTS = st.text(st.characters(), max_size=8)  # with halves of surrogate pairs
_ENTRIES = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(("a", "b", "\ud800", "")), "inputSchema": schemas() | JSON},
        optional={"description": _TEXTS | JSON, "title": _TEXTS | JSON, "annotations": JSON},
    )
    | JSON,
    max_size=3,
)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"required": [["a", 1]]}, "a malformed schema: #/required must be a list of names"),
        ({"allOf": [{"properties": "a"}]}, "a malformed schema: #/allOf/0/properties must be an object with"),
        ({"properties": {"a": {"enum": ["\ud800"]}}}, "a schema that is not JSON"),
        ({"properties": {"a": {"maximum": float("nan")}}}, "a schema that is not JSON"),
    ],
)
def test_a_malformed_tool_is_left_out_with_a_notice_and_the_others_stay(schema: Any, reason: str) -> None:
    listing = listed_tools("notes", "identity", [{"name": "odd", "inputSchema": schema}, tool_entry("sound")], 5.0)

    assert [tool.name for tool in listing.tools] == ["sound"]
    assert f"odd ({reason}" in listing.problem


@pytest.mark.slow
@given(_ENTRIES)
def test_whatever_a_server_lists_the_service_takes_a_request_with_its_tools(entries: list[Any]) -> None:
    listing = listed_tools("notes", "identity", entries, 5.0)

    tools = [tool.definition for tool in listing.tools]
    sent = [{"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)} for tool in tools]
    body = parse_object(json.dumps({"tools": [{"type": "function", "function": each} for each in sent]}).encode())
    ToolOptions(tools=tuple(Tool(**each["function"]) for each in body["tools"]))
