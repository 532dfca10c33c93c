"""What a server lists is bounded, printable, and refers to nothing elsewhere; what is left out is said."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.chat import MediaPart
from app.tools.mcp.config import ToolError
from app.tools.mcp.listing import (
    BUILT_IN_SERVERS,
    MAX_LISTED,
    Prompt,
    PromptArgument,
    ToolListing,
    listed_prompts,
    listed_resources,
    listed_tools,
    prompt_text,
    read_prompt_arguments,
    resource_content,
    result_output,
    server_names,
    tool_names,
)
from app.tools.tool import MAX_MEDIA, MAX_MEDIA_BASE64
from quantizer.system.errors import UsageError
from tests.app.tools.mcp.scripted import tool_entry


def listed(*entries: object) -> ToolListing:
    return listed_tools("notes", "identity", entries, 5.0)


def with_schema(schema: object, name: str = "a") -> dict[str, Any]:
    return {**tool_entry(name), "inputSchema": schema}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_a_tool_keeps_what_it_says() -> None:
    (tool,) = listed({**tool_entry(), "title": "Search"}).tools
    assert (tool.server, tool.name, tool.title, tool.timeout_s) == ("notes", "search", "Search", 5.0)
    assert tool.definition.name == "notes__search"
    assert tool.definition.description == "Search notes."
    assert tool.definition.parameters == tool_entry()["inputSchema"]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (3, "no usable name"),
        ({}, "no usable name"),
        (tool_entry("a\x1b[2J"), "no usable name"),
        (tool_entry("x" * 129), "no usable name"),
        (with_schema(None), "no schema of an object"),
        (with_schema([]), "no schema of an object"),
        (with_schema({"type": "string"}), "no schema of an object"),
        (with_schema(nested(13)), "too deep"),
        (with_schema(nested(90)), "too deep"),
        (with_schema({"description": "x" * 50_000}), "too large"),
        (with_schema({"properties": {"a": {"$ref": "https://example.org/schema.json"}}}), "another document"),
        (with_schema({"properties": {"a": {"$ref": "file:///etc/passwd"}}}), "another document"),
        (with_schema({"properties": {"a\x1b]0;x\x07": {}}}), "control characters"),
    ],
)
def test_a_tool_that_cannot_be_offered_is_left_out_and_named(entry: object, reason: str) -> None:
    listing = listed(entry, tool_entry("fine"))
    assert [tool.name for tool in listing.tools] == ["fine"]
    assert reason in listing.problem
    assert "\x1b" not in listing.problem


def test_a_reference_within_the_schema_and_a_property_of_that_name_stay() -> None:
    schema = {"type": "object", "properties": {"$ref": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "string"}}}
    (tool,) = listed(with_schema(schema)).tools
    assert tool.definition.parameters == schema


def test_texts_for_models_are_printable_and_cut_and_values_stay() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.org/a",
        "properties": {"a": {"description": "b\x1b[31mold\u202e", "enum": ["\x1b"]}},
    }
    entry = {**with_schema(schema), "description": "a\x1b[2J" + "d" * 10_000, "title": "t\u2066\nu"}
    (tool,) = listed(entry).tools
    assert tool.definition.description.startswith("a[2Jddd")
    assert tool.definition.description.endswith("characters left out]")
    assert len(tool.definition.description) < 4_100
    assert tool.title == "t u"
    assert tool.definition.parameters == {
        "type": "object",
        "properties": {"a": {"description": "b[31mold", "enum": ["\x1b"]}},
    }


def test_a_huge_list_is_cut_and_that_is_said() -> None:
    listing = listed(*(tool_entry(f"t{number}") for number in range(5_000)))
    assert len(listing.tools) == MAX_LISTED
    assert f"t200, t201, t202 and 4,797 more (more than {MAX_LISTED})" in listing.problem


def test_a_tool_that_is_listed_twice_is_offered_once() -> None:
    listing = listed(tool_entry("a", "first"), tool_entry("a", "second"))
    assert [tool.definition.description for tool in listing.tools] == ["first"]
    assert "listed twice" in listing.problem


def test_a_fingerprint_changes_with_what_is_shown_even_where_it_is_cut() -> None:
    long = "d" * 9_000
    first, second = (listed(tool_entry("a", long + end)).tools[0] for end in "12")
    assert first.definition == second.definition
    assert first.fingerprint != second.fingerprint
    assert listed(tool_entry("a"), tool_entry("b")).tools[0].fingerprint == listed(tool_entry("a")).tools[0].fingerprint


def test_the_fingerprint_of_a_server_changes_with_any_of_its_tools_and_not_with_their_order() -> None:
    one, two = tool_entry("a"), tool_entry("b")
    prints = [listed(*entries).tools[0].server_fingerprint for entries in ((one, two), (two, one), (one,))]
    assert prints[0] == prints[1] != prints[2]


def test_prompts_and_resources_keep_what_is_usable() -> None:
    prompts = listed_prompts(
        [{"name": "a", "arguments": [{"name": "x", "required": True}, {}, 3]}, {"name": "b\x1b"}, None, {"title": "c"}]
    )
    assert [(each.name, [(each.name, each.is_required) for each in each.arguments]) for each in prompts] == [
        ("a", [("x", True)])
    ]
    resources = listed_resources([{"uri": "note://1", "name": "One", "mimeType": "text/plain"}, {"uri": "a\nb"}, {}])
    assert [(each.uri, each.name, each.mime_type) for each in resources] == [("note://1", "One", "text/plain")]
    assert len(listed_resources([{"uri": f"n://{number}"} for number in range(999)])) == MAX_LISTED


NAMES = st.lists(st.text(min_size=1, max_size=80), max_size=6, unique=True)
FORM = re.compile("[A-Za-z0-9_-]{1,64}")


@given(NAMES, NAMES)
def test_all_tools_of_all_servers_have_names_of_their_own(servers: list[str], tools: list[str]) -> None:
    found = server_names(servers)
    names = [name for server in found.values() for name in tool_names(server, tools).values()]
    assert len(set(names)) == len(servers) * len(tools)
    assert all(FORM.fullmatch(name) for name in names)
    assert not BUILT_IN_SERVERS & set(found.values())
    assert all("__" not in server for server in found.values())


@given(NAMES, NAMES)
def test_names_do_not_change_from_start_to_start(servers: list[str], tools: list[str]) -> None:
    assert server_names(servers) == server_names(servers)
    assert tool_names("server", tools) == tool_names("server", tools)


def test_usual_names_stay_as_they_are() -> None:
    assert server_names(["github", "my server", "my_server", "files", "a__b"]) == {
        "github": "github",
        "my server": "my_server",
        "my_server": "my_server_2",
        "files": "files_2",
        "a__b": "a_b",
    }
    assert tool_names("github", ["create_issue", "list.issues", "list/issues"]) == {
        "create_issue": "github__create_issue",
        "list.issues": "github__list_issues",
        "list/issues": "github__list_issues_2",
    }


def test_long_names_are_cut_and_stay_apart() -> None:
    first, second = "x" * 100 + "a", "x" * 100 + "b"
    names = tool_names("server", [first, second])
    assert {len(name) for name in names.values()} == {64}
    assert names[first] != names[second]


IMAGE = base64.b64encode(bytes(300)).decode()
NAMELESS = "[image: unknown type, 0 bytes; this chat has only its description]"


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (text("hello"), "hello"),
        (
            {"type": "image", "mimeType": "text/html", "data": IMAGE},
            "[image: text/html, 300 bytes; this chat has only its description]",
        ),
        ({"type": "audio", "data": ""}, "[audio: unknown type, 0 bytes; this chat has only its description]"),
        (
            {"type": "resource_link", "uri": "note://1", "name": "One", "mimeType": "text/plain"},
            "[resource: note://1 (One, text/plain)]",
        ),
        ({"type": "resource", "resource": {"uri": "note://1", "text": "x"}}, "[resource: note://1]\nx"),
        (
            {"type": "resource", "resource": {"uri": "n://1", "blob": IMAGE, "mimeType": "a/b"}},
            "[resource: n://1, a/b, 300 bytes; this chat has only its description]",
        ),
        ({"type": "hologram"}, "[content of the unknown kind 'hologram']"),
        ({"type": "resource", "mimeType": "image/png", "data": IMAGE}, "[content of the unknown kind 'resource']"),
        ({"type": "resource", "resource": [1], "mimeType": "image/png"}, "[content of the unknown kind 'resource']"),
        ({"type": "image", "resource": {"mimeType": "image/png", "blob": 5}}, NAMELESS),
        ({"type": "image", "mimeType": ["image/png"], "data": {"a": 1}}, NAMELESS),
        ({}, "[content of the unknown kind None]"),
    ],
)
def test_a_kind_of_content_says_what_it_is(block: dict[str, Any], said: str) -> None:
    assert result_output({"content": [block]}).text == said


def test_pictures_and_sounds_are_beside_the_text_which_names_each_in_its_place() -> None:
    picture, sound = {"type": "image", "mimeType": "image/png", "data": IMAGE}, {"mimeType": "audio/wav", "blob": IMAGE}
    embedded = {"type": "resource", "resource": {"uri": "n://1", **sound}}
    output = result_output({"content": [text("Here:"), picture, text("and"), embedded, picture]})
    assert output.text.splitlines() == [
        "Here:",
        "[picture 1: image/png, 300 bytes]",
        "and",
        "[sound 1 of n://1: audio/wav, 300 bytes]",
        "[picture 2: image/png, 300 bytes]",
    ]
    png, wav = MediaPart("image/png", IMAGE), MediaPart("audio/wav", IMAGE)
    assert output.media == (png, wav, png)


def test_a_result_has_no_more_pictures_than_a_model_may_look_at_and_the_rest_are_named() -> None:
    picture = {"type": "image", "mimeType": "image/png", "data": IMAGE}
    large = {**picture, "data": "A" * MAX_MEDIA_BASE64}
    output = result_output({"content": [picture, large, *[picture] * MAX_MEDIA]})
    assert len(output.media) == MAX_MEDIA
    assert output.text.count("this chat has only its description") == 2


def test_an_error_of_the_tool_is_one() -> None:
    output = result_output({"content": [text("no"), {"type": "image", "data": ""}], "isError": True})
    assert output.is_error
    assert output.detail == "error reported by the tool, 1 × image"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"structuredContent": {"n": 1}}, '{\n "n": 1\n}'),
        ({"content": [text('{"n":1}')], "structuredContent": {"n": 1}}, '{"n":1}'),
        ({"content": [text("hello")], "structuredContent": {"result": "hello"}}, "hello"),
        ({"content": [text("one note")], "structuredContent": {"n": 1}}, 'one note\n{\n "n": 1\n}'),
        ({"content": [text("one")], "structuredContent": {"a": "one", "b": 2}}, 'one\n{\n "a": "one",\n "b": 2\n}'),
        ({}, ""),
        ({"content": "no list"}, ""),
        ({"content": ["no object", text("a")]}, "a"),
    ],
)
def test_structured_content_is_said_once(result: dict[str, Any], said: str) -> None:
    assert result_output(result).text == said


def test_json_that_is_deeper_than_the_stack_is_a_text() -> None:
    deep = "[" * 100_000
    assert result_output({"content": [text(deep)], "structuredContent": {"n": 1}}).text.startswith(deep)


def test_a_prompt_of_one_message_is_its_text_and_of_several_says_who_speaks() -> None:
    one = {"role": "user", "content": text("Review this.")}
    assert prompt_text({"messages": [one]}) == "Review this."
    other = {"role": "assistant", "content": [text("Fine."), text("Go on.")]}
    assert prompt_text({"messages": [one, other]}) == "User: Review this.\n\nAssistant: Fine.\nGo on."


def test_a_resource_of_several_parts_names_each() -> None:
    contents = [{"uri": "a://1", "text": "x"}, {"uri": "a://2", "text": "y"}]
    assert resource_content({"contents": contents}) == "[resource: a://1]\nx\n[resource: a://2]\ny"
    assert resource_content({"contents": contents[:1]}) == "x"
    assert resource_content({"contents": [{"uri": "a://3", "blob": "AAE="}]}) == b"\x00\x01"
    with pytest.raises(ToolError, match=r"neither text nor base64"):
        resource_content({"contents": [{"uri": "a://3", "blob": "%"}]})


@pytest.mark.parametrize(
    ("typed", "arguments"),
    [
        ("city=Bern state='B E'", {"city": "Bern", "state": "B E"}),
        ("city=a=b", {"city": "a=b"}),
        ("Bern", "does not take these arguments. It takes: city=… [state=…]"),
        ("", "needs city. It takes: city=… [state=…]"),
        ("city='Bern", "quotation mark that is not closed"),
    ],
)
def test_arguments_of_a_prompt_are_typed_by_name(typed: str, arguments: object) -> None:
    prompt = Prompt("weather", arguments=(PromptArgument("city", is_required=True), PromptArgument("state")))
    if isinstance(arguments, dict):
        assert read_prompt_arguments(prompt, typed) == arguments
        return
    with pytest.raises(UsageError) as refused:
        read_prompt_arguments(prompt, typed)
    assert str(arguments) in str(refused.value)


def test_the_only_argument_of_a_prompt_needs_no_name() -> None:
    prompt = Prompt("review", arguments=(PromptArgument("what", is_required=True),))
    assert read_prompt_arguments(prompt, "this = that") == {"what": "this = that"}
    assert read_prompt_arguments(prompt, "what=this") == {"what": "this"}


@pytest.mark.parametrize("arguments", [{"a": 1}, {"": None}, "a", 3, True])
def test_arguments_of_a_prompt_that_are_no_list_are_none(arguments: object) -> None:
    assert [prompt.arguments for prompt in listed_prompts([{"name": "p", "arguments": arguments}])] == [()]
