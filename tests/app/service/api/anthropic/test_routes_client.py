"""The official Anthropic client against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.running import RunningService
from tests.app.service.api import sdk

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]
TOOL: Any = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Åre"}}\n</tool_call>'


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[sdk.anthropic.Anthropic]:
    with sdk.anthropic.Anthropic(base_url=service.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.slow
def test_it_asks_and_streams(client: sdk.anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text
    assert text == whole.content[0].text
    assert final.content[0].text == text
    assert final.stop_reason == whole.stop_reason
    counted = client.messages.count_tokens(model="tiny", messages=MESSAGES).input_tokens
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) == counted


def test_a_whole_loop_with_a_tool_runs(client: sdk.anthropic.Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": f"<say>{CALL}</say>"}]
    with client.messages.stream(model="tiny", max_tokens=500, messages=messages, tools=[TOOL]) as stream:
        first = stream.get_final_message()
    (call,) = first.content
    assert call.type == "tool_use"
    assert call.input == {"city": "Åre"}
    assert first.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "<say>It snows.</say>"}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(model="tiny", max_tokens=500, messages=messages, tools=[TOOL])
    assert second.content[0].text == "It snows."
    assert second.stop_reason == "end_turn"


def test_its_own_errors_are_raised(client: sdk.anthropic.Anthropic) -> None:
    with pytest.raises(sdk.anthropic.NotFoundError):
        client.messages.create(model="mario", max_tokens=5, messages=MESSAGES)
    with pytest.raises(sdk.anthropic.BadRequestError, match=r"prompt is too long: 50\d\d tokens > 4096 maximum"):
        client.messages.create(model="tiny", max_tokens=5, messages=[{"role": "user", "content": "x" * 5000}])
