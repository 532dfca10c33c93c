"""GPT-OSS in every dialect over HTTP: a model with its template, and a fake engine that says what the model would.

The bodies are those that the named clients send by themselves.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.service.api.responses.requests import ResponsesBody
from tests.app.one_file_service import MADE, Service, serving
from tests.app.service.api import sdk

TEMPLATES = Path(__file__).parents[1] / "tools" / "family_templates"
TEMPLATE = (TEMPLATES / "gpt-oss.jinja").read_text("utf-8")
THOUGHT_AND_ANSWER = "<|channel|>analysis<|message|>Hm, 4.<|end|><|start|>assistant<|channel|>final<|message|>It is 4."
THOUGHT_AND_CALL = (
    "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
    '<|constrain|>json<|message|>{"city": "Åre"}'
)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Tells the weather.", "parameters": PARAMETERS}


@pytest.fixture
async def service(tmp_path: Path, tiny_model: Path) -> AsyncIterator[Service]:
    async with serving(tmp_path, tiny_model) as service:
        await service.make(MADE, template=TEMPLATE)
        yield service


def saying(text: str) -> dict[str, str]:
    """Return a message to which the fake model answers `text`."""
    return {"role": "user", "content": f"<say>{text}</say>"}


async def prompt(service: Service, **body: Any) -> str:
    return str((await service.posted("/apply-template", body))["prompt"])


async def test_chat_completions_of_openai_python_3_54(service: Service) -> None:
    body = {"messages": [saying(THOUGHT_AND_ANSWER)], "reasoning_effort": "low"}
    whole = await service.posted("/v1/chat/completions", body)
    message = whole["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "It is 4.", "reasoning_content": "Hm, 4."}
    options = {"stream_options": {"include_usage": True}}
    *told, usage = await service.events("/v1/chat/completions", body | options)
    for cost in (whole["usage"], usage["usage"]):
        assert 0 < cost["completion_tokens_details"]["reasoning_tokens"] < cost["completion_tokens"]
    deltas = [event["choices"][0]["delta"] for event in told]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm, 4."
    assert "".join(delta.get("content", "") for delta in deltas) == "It is 4."


async def test_chat_completions_with_tools_of_openai_python_3_54(service: Service) -> None:
    body = {"messages": [saying(THOUGHT_AND_CALL)], "tools": [{"type": "function", "function": FUNCTION}]}
    (choice,) = (await service.posted("/v1/chat/completions", body))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "I look."
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Åre"}'}
    calls = [
        call["function"]
        for event in await service.events("/v1/chat/completions", body)
        for call in event["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert calls[0]["name"] == "get_weather"
    assert "".join(call["arguments"] for call in calls) == '{"city": "Åre"}'


async def test_think_low_of_ollama_python_0_6(service: Service) -> None:
    body = {"messages": [saying(THOUGHT_AND_ANSWER)], "think": "low", "options": {}, "tools": []}
    answer = await service.posted("/api/chat", body | {"stream": False})
    assert answer["message"] == {"role": "assistant", "content": "It is 4.", "thinking": "Hm, 4."}
    lines = await service.events("/api/chat", body)
    assert "".join(line["message"].get("thinking", "") for line in lines) == "Hm, 4."
    assert "".join(line["message"]["content"] for line in lines) == "It is 4."
    shown = await service.posted("/api/show", {})
    assert {"thinking", "tools"} <= set(shown["capabilities"])


async def test_codex_with_oss_over_responses(service: Service) -> None:
    tool = {"type": "function", "strict": False, **FUNCTION}
    body = {
        "instructions": "You are a coding agent.",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<say>@</say>"}]}],
        "tools": [tool],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
    }
    body = json.loads(json.dumps(body).replace("@", json.dumps(THOUGHT_AND_CALL)[1:-1]))
    thought, call = (await service.posted("/v1/responses", body))["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "I look."}]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "get_weather", '{"city": "Åre"}')
    told = await service.events("/v1/responses", body)
    assert [item["type"] for item in told[-1]["response"]["output"]] == ["reasoning", "function_call"]
    assert "".join(event["delta"] for event in told if "reasoning_summary_text.delta" in event["type"]) == "I look."
    kept = {key: thought[key] for key in ("type", "encrypted_content")} | {"summary": []}
    earlier = ResponsesBody.model_validate({"input": [*body["input"], kept, call]}).turn().messages
    assert earlier[-1].reasoning == "I look."


async def test_claude_code_over_messages(service: Service) -> None:
    body = {
        "system": [{"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": saying(THOUGHT_AND_CALL)["content"]}]}],
        "tools": [{"name": "get_weather", "description": "Tells the weather.", "input_schema": PARAMETERS}],
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "u"},
    }
    answer = await service.posted("/v1/messages", body)
    assert answer["stop_reason"] == "tool_use"
    thought, call = answer["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "I look.")
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "get_weather", {"city": "Åre"})
    begun = [
        event["content_block"]["type"]
        for event in await service.events("/v1/messages", body)
        if "content_block" in event
    ]
    assert begun == ["thinking", "tool_use"]


async def test_an_answer_of_a_schema_may_come_after_reasoning(service: Service) -> None:
    """openai-agents 0.6 with an `output_type`."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": PARAMETERS}}
    text = THOUGHT_AND_ANSWER.replace("final", "final <|constrain|>json").replace("It is 4.", '{"city": "Åre"}')
    answer = await service.posted("/v1/chat/completions", {"messages": [saying(text)], "response_format": form})
    message = answer["choices"][0]["message"]
    assert message == {"role": "assistant", "content": '{"city": "Åre"}', "reasoning_content": "Hm, 4."}


async def test_a_grammar_of_the_client_holds_from_the_beginning_of_the_answer(service: Service) -> None:
    asked = {"messages": [saying("yes")], "grammar": 'root ::= "yes"'}
    answer = await service.posted("/v1/chat/completions", asked)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "yes"}
    assert (await prompt(service, **asked)).endswith("<|start|>assistant<|channel|>final<|message|>")


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({}, "medium"),
        ({"reasoning_effort": "high"}, "high"),  # openai-python 3.54
        ({"reasoning_effort": "minimal"}, "low"),
        ({"reasoning_effort": "xhigh"}, "high"),
        ({"reasoning_effort": "none"}, "low"),
        ({"reasoning": {"effort": "low"}}, "low"),  # OpenRouter's SDK, Cline
        ({"thinking": {"type": "enabled", "budget_tokens": 31999}}, "high"),  # LiteLLM 1.80 to a compatible server
        ({"enable_thinking": False}, "low"),  # qwen-code 0.4
        ({"thinking": False}, "low"),
        ({"thinking": "high"}, "high"),
        ({"reasoning": "off"}, "low"),
        ({"reasoning": {"enabled": True}, "thinking": {"type": "auto"}}, "medium"),
        ({"thinking": {"type": "unheard"}}, "medium"),
        ({"reasoning_effort": "auto"}, "medium"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "low"),  # llama-server's page, open-webui
    ],
)
async def test_levels_reach_the_template_from_chat_completions(
    service: Service, fields: dict[str, Any], level: str
) -> None:
    assert f"Reasoning: {level}<" in await prompt(service, messages=[{"role": "user", "content": "hi"}], **fields)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "very"}, 400),
        ("/v1/chat/completions", {"thinking": "very"}, 400),
        ("/api/chat", {"think": "very"}, 400),
        ("/v1/responses", {"input": "hi", "reasoning": {"effort": "very"}}, 400),
        ("/v1/chat/completions", {"chat_template_kwargs": {"messages": []}}, 400),
        ("/v1/chat/completions", {"chat_template_kwargs": {"self": 1, "template": ""}}, 400),
        ("/v1/chat/completions", {"chat_template_kwargs": {"raise_exception": 1, "x": [{}]}, "max_tokens": 1}, 200),
    ],
)
async def test_an_unknown_level_and_variables_of_ours_are_refused(
    service: Service, path: str, body: dict[str, Any], status: int
) -> None:
    asked = {"model": MADE, "messages": [{"role": "user", "content": "hi"}], **body}
    answer = await service.http.post(path, json=asked)
    assert answer.status_code == status, answer.text


async def test_who_wants_no_thought_gets_none_and_who_says_nothing_of_it_keeps_it(service: Service) -> None:
    """Open WebUI and `ollama run --think=false` send this; Anthropic's clients mean it by saying nothing."""
    asked = {"messages": [saying(THOUGHT_AND_ANSWER)]}
    told = await service.posted("/api/chat", asked | {"think": False, "stream": False})
    assert told["message"] == {"role": "assistant", "content": "It is 4."}
    assert "warnings" not in told
    assumed = await service.posted("/v1/messages", asked | {"max_tokens": 400})
    assert [block["type"] for block in assumed["content"]] == ["thinking", "text"]
    assert "warnings" not in assumed


CALLS: list[dict[str, Any]] = [
    {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("one", "two")
]


async def test_calls_go_back_one_by_one_with_their_results_and_thoughts(service: Service) -> None:
    """Vercel's AI SDK 5 with an OpenAI-compatible provider sends `reasoning_content` back; others do not."""
    assistant = {"role": "assistant", "content": "", "reasoning_content": "I look.", "tool_calls": CALLS}
    results = [{"role": "tool", "tool_call_id": name, "content": name.upper()} for name in ("two", "one")]
    made = await prompt(service, messages=[{"role": "user", "content": "hi"}, assistant, *results])
    assert made.endswith(
        "<|start|>assistant<|channel|>analysis<|message|>I look.<|end|>"
        "<|start|>assistant to=functions.one<|channel|>commentary json<|message|>{}<|call|>"
        '<|start|>functions.one to=assistant<|channel|>commentary<|message|>"ONE"<|end|>'
        "<|start|>assistant to=functions.two<|channel|>commentary json<|message|>{}<|call|>"
        '<|start|>functions.two to=assistant<|channel|>commentary<|message|>"TWO"<|end|><|start|>assistant'
    )


async def test_an_output_goes_back_as_it_was(service: Service) -> None:
    output = (
        "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant to=functions.get_weather<|channel|>commentary "
        'json<|message|>{"city": "Åre", "days": 3}<|call|>'
    )
    asked = {"messages": [saying(output)], "tools": [{"type": "function", "function": FUNCTION}]}
    before = await prompt(service, **asked)
    answered = (await service.posted("/v1/chat/completions", asked))["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": answered["tool_calls"][0]["id"], "content": "Sunny."}
    after = await prompt(service, messages=[*asked["messages"], answered, result], tools=asked["tools"])
    assert after.startswith(before + output)


async def test_a_plan_for_the_user_before_a_call_joins_the_thought(service: Service) -> None:
    assistant = {"role": "assistant", "content": "Let me see.", "reasoning": "I look.", "tool_calls": CALLS[:1]}
    made = await prompt(service, messages=[{"role": "user", "content": "hi"}, assistant])
    assert "<|channel|>analysis<|message|>I look.\n\nLet me see.<|end|><|start|>assistant to=functions.one" in made


async def test_every_system_message_reaches_the_template(service: Service) -> None:
    """opencode 1.0 begins with two."""
    messages = [{"role": "system", "content": text} for text in ("Be brief.", "You are in /src.")]
    late = {"role": "system", "content": "Time is up."}
    made = await prompt(service, messages=[*messages, {"role": "user", "content": "hi"}, late])
    assert "<|start|>developer<|message|>Be brief.\n\nYou are in /src.<|end|>" in made
    assert made.endswith("<|start|>user<|message|>Time is up.<|end|><|start|>assistant")


async def test_an_answer_continues_in_its_channel(service: Service) -> None:
    begun = {"role": "assistant", "content": "Once"}
    made = await prompt(service, messages=[{"role": "user", "content": "hi"}, begun], continue_final_message=True)
    assert made.endswith("<|start|>assistant<|channel|>final<|message|>Once")


async def test_openai_s_client_accumulates_a_thought_a_plan_and_a_call(service: Service) -> None:
    """openai-python 3.54 sends the request, and checks every event of the stream."""
    client = sdk.openai.AsyncOpenAI(
        base_url="http://localhost/v1", api_key="none", http_client=service.http, max_retries=0
    )
    text = THOUGHT_AND_CALL.replace("<|end|>", "<|end|><|start|>assistant<|channel|>commentary<|message|>I go.<|end|>")
    messages: Any = [saying(text)]
    tool: Any = {"type": "function", "function": FUNCTION}
    async with client.chat.completions.stream(
        model=MADE, messages=messages, tools=[tool], reasoning_effort="low"
    ) as stream:
        (choice,) = (await stream.get_final_completion()).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I go."
    assert choice.message.to_dict()["reasoning_content"] == "I look."
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.arguments == '{"city": "Åre"}'


@pytest.mark.slow
async def test_openai_s_client_gets_the_items_of_a_response(service: Service) -> None:
    client = sdk.openai.AsyncOpenAI(
        base_url="http://localhost/v1", api_key="none", http_client=service.http, max_retries=0
    )
    asked: Any = {"model": MADE, "input": [saying(THOUGHT_AND_ANSWER)], "reasoning": {"effort": "high"}}
    whole = await client.responses.create(**asked)
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert whole.output_text == "It is 4."
    async with client.responses.stream(**asked) as stream:
        last = await stream.get_final_response()
    assert [item.type for item in last.output] == ["reasoning", "message"]
    assert last.output_text == "It is 4."


async def test_anthropic_s_client_gets_the_blocks_of_a_message(service: Service) -> None:
    """anthropic 2.12, with the fields of Claude Code."""
    httpx2 = pytest.importorskip("httpx2", reason="this anthropic is older than 2 and brings none")
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=service.app))
    client = sdk.anthropic.AsyncAnthropic(base_url="http://localhost", api_key="none", http_client=http)
    tool: Any = {"name": "get_weather", "description": "Tells the weather.", "input_schema": PARAMETERS}
    messages: Any = [saying(THOUGHT_AND_CALL)]
    async with client.messages.stream(
        model=MADE,
        messages=messages,
        tools=[tool],
        max_tokens=4096,
        thinking={"type": "enabled", "budget_tokens": 4000},
    ) as stream:
        message = await stream.get_final_message()
    thought, call = message.content
    assert thought.type == "thinking"
    assert thought.thinking == "I look."
    assert call.type == "tool_use"
    assert call.input == {"city": "Åre"}
    assert message.stop_reason == "tool_use"
