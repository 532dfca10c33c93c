"""Results of servers as text: every kind of content says what it is."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from app.tools.mcp.content import prompt_text, resource_text, result_output

IMAGE = base64.b64encode(bytes(300)).decode()


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (text("hello"), "hello"),
        (
            {"type": "image", "mimeType": "image/png", "data": IMAGE},
            "[image: image/png, 300 bytes; this chat has only its description]",
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
        ({}, "[content of the unknown kind None]"),
    ],
)
def test_a_kind_of_content_says_what_it_is(block: dict[str, Any], said: str) -> None:
    assert result_output({"content": [block]}).text == said


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
    assert resource_text({"contents": contents}) == "[resource: a://1]\nx\n[resource: a://2]\ny"
