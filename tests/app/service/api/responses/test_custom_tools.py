"""Custom tools, whose input is a text: Codex's apply_patch, and those of the AI SDK and of openai-agents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.service.api.responses.requests import InputItem, ResponsesBody
from tests.app.running import RunningService
from tests.app.service.api.responses.test_responses import both, of_kind
from tests.app.service.api.responses.test_routes import TOOL
from tests.app.service.api.responses.test_stored import ask, say, texts

PATCH = "*** Begin Patch\n*** Update File: a.py\n+x = 1\n*** End Patch"
# Codex 0.169 for the models of OpenAI.
APPLY_PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" LF'},
}


def called(name: str, arguments: dict[str, Any]) -> str:
    return say(f"Now.<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>")


def test_a_custom_tool_is_called_with_a_text(service: RunningService) -> None:
    asked = called("apply_patch", {"input": PATCH})
    whole, events = both(service, input=asked, tools=[APPLY_PATCH, TOOL])
    message, call = whole["output"]
    assert message["content"][0]["text"] == "Now."
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", PATCH)
    (done,) = of_kind(events, "custom_tool_call_input.done")
    assert (
        done["input"] == PATCH == "".join(event["delta"] for event in of_kind(events, "custom_tool_call_input.delta"))
    )
    assert whole["tools"][0] == APPLY_PATCH


def test_its_result_comes_back_by_the_previous_response(service: RunningService) -> None:
    first = ask(service, input=called("apply_patch", {"input": PATCH}), tools=[APPLY_PATCH])
    call = first["output"][1]
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": say("Done.")}
    second = ask(service, input=[result], tools=[APPLY_PATCH], previous_response_id=first["id"])
    whole = ask(service, input=[{"role": "user", "content": "a"}, call, result], tools=[APPLY_PATCH])
    assert texts(second["output"]) == texts(whole["output"]) == ["Done."]


def test_the_model_reads_the_grammar_of_the_input() -> None:
    body = ResponsesBody.model_validate(
        {"input": "a", "tools": [APPLY_PATCH], "tool_choice": {"type": "custom", "name": "apply_patch"}}
    )
    options = body.turn().tools
    (tool,) = options.tools
    assert "Edits files." in tool.description
    assert "*** Begin Patch" in tool.description
    assert tool.parameters["required"] == ["input"]
    assert options.only == "apply_patch"


@pytest.mark.parametrize("arguments", [{"text": "x"}, {"input": 1}, {}])
def test_other_arguments_reach_the_tool_as_they_are(service: RunningService, arguments: dict[str, Any]) -> None:
    whole, _ = both(service, input=called("apply_patch", arguments), tools=[APPLY_PATCH])
    assert json.loads(whole["output"][1]["input"]) == arguments


def test_a_call_of_a_custom_tool_is_read_again() -> None:
    call = {"type": "custom_tool_call", "call_id": "call_1", "name": "apply_patch", "input": PATCH}
    (message,) = InputItem.model_validate(call).messages()
    (again,) = message.calls
    assert (again.name, again.arguments_object()) == ("apply_patch", {"input": PATCH})
