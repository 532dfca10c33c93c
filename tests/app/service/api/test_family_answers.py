"""Answers of each family in every dialect over HTTP: its template, and a fake engine that says what the model would.

The bodies are those that the named clients send for the calls in the comments.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.app.one_file_service import MADE, Service, serving

pytestmark = pytest.mark.slow

TOOLS = Path(__file__).parents[1] / "tools"
TEMPLATES = {path.stem: path.read_text("utf-8") for path in sorted((TOOLS / "family_templates").glob("*.jinja"))}
LINES = [json.loads(line) for line in (TOOLS / "family_outputs.jsonl").read_text("utf-8").splitlines()]
OUTPUTS = {line["family"]: line for line in LINES if line["case"] == "reasoning, text and a call"}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
FUNCTION = {"name": "get_weather", "description": "Tells the weather.", "parameters": PARAMETERS}


@pytest.fixture
async def service(tmp_path: Path, tiny_model: Path) -> AsyncIterator[Service]:
    async with serving(tmp_path, tiny_model) as service:
        yield service


@pytest.mark.parametrize("family", TEMPLATES)
async def test_thought_text_and_call_come_apart_and_go_back(service: Service, family: str) -> None:
    line = OUTPUTS[family]
    await service.make(MADE, template=TEMPLATES[family])
    asked = [{"role": "user", "content": f"<say>{line['output']}</say>"}]
    [[name, arguments]] = line["calls"]

    # openai-python 3.54: chat.completions.create(model=…, messages=…, tools=…), whole and with stream=True
    body = {"messages": asked, "tools": [{"type": "function", "function": FUNCTION}]}
    (choice,) = (await service.posted("/v1/chat/completions", body))["choices"]
    message = choice["message"]
    (call,) = message["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message.get("reasoning_content", ""), message["content"]) == (line["reasoning"], line["text"])
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (name, arguments)
    deltas = [event["choices"][0]["delta"] for event in await service.events("/v1/chat/completions", body)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == line["reasoning"]
    assert "".join(delta.get("content") or "" for delta in deltas) == line["text"]
    parts = [part["function"] for delta in deltas for part in delta.get("tool_calls", [])]
    assert json.loads("".join(part["arguments"] for part in parts)) == arguments

    # its second turn: messages.append(choice.message), with the reasoning in it, and the result
    result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
    before = (await service.posted("/apply-template", body))["prompt"]
    after = (await service.posted("/apply-template", {**body, "messages": [*asked, message, result]}))["prompt"]
    assert "done" in after
    assert after.startswith(before + line["output"]) or line["rendered"] in after

    # anthropic-sdk-python 2.12: messages.create(…, thinking={"type": "enabled", …})
    body = {
        "max_tokens": 32000,
        "messages": [{"role": "user", "content": [{"type": "text", "text": asked[0]["content"]}]}],
        "tools": [{"name": name, "description": "Tells the weather.", "input_schema": PARAMETERS}],
        "thinking": {"type": "enabled", "budget_tokens": 31999},
    }
    blocks = (await service.posted("/v1/messages", body))["content"]
    assert [block["type"] for block in blocks] == [*(["thinking"] if line["reasoning"] else []), "text", "tool_use"]
    assert (blocks[-1]["name"], blocks[-1]["input"]) == (name, arguments)

    # ollama-python 0.6.3: chat(model=…, messages=…, tools=…, stream=True)
    body = {"messages": asked, "tools": [{"type": "function", "function": FUNCTION}], "options": {}}
    told = [answer["message"] for answer in await service.events("/api/chat", body)]
    assert "".join(part.get("thinking", "") for part in told) == line["reasoning"]
    assert "".join(part["content"] for part in told) == line["text"]
    (call,) = [call["function"] for part in told for call in part.get("tool_calls", [])]
    assert (call["name"], call["arguments"]) == (name, arguments)
    shown = await service.posted("/api/show", {})
    assert {"tools", *(["thinking"] if line["reasoning"] else [])} <= set(shown["capabilities"])
