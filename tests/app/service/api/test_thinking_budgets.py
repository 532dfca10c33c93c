"""Budgets of reasoning in every dialect over HTTP: models with their templates, and a fake engine that thinks aloud.

Of the fake a token is a byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.one_file_service import MADE, Service, serving

TEMPLATES = Path(__file__).parents[1] / "tools" / "family_templates"
QWEN, GPT_OSS = ((TEMPLATES / f"{name}.jinja").read_text("utf-8") for name in ("qwen3", "gpt-oss"))
SENTENCE = "Considering the limited time by the user, I have to give the solution based on the thinking directly now."
THOUGHT = "so and " * 40
SAID = f"<think>\n{THOUGHT}\n</think>\n\nIt is 4."
HARMONY_SAID = (
    f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>"
)


@pytest.fixture
async def service(tmp_path: Path, tiny_model: Path) -> AsyncIterator[Service]:
    async with serving(tmp_path, tiny_model, step_ms=0) as service:
        await service.make(MADE, template=QWEN)
        yield service


def said(text: str = SAID) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"<say>{text}</say>"}]


async def chat(service: Service, **body: Any) -> tuple[str, str, dict[str, Any]]:
    """Return reasoning, text and the whole answer."""
    whole = await service.posted("/v1/chat/completions", {"messages": said(), **body})
    message = whole["choices"][0]["message"]
    return message.get("reasoning_content", ""), message["content"], whole


@pytest.mark.parametrize(
    "budget",
    [
        {"thinking_budget_tokens": 40},  # llama-server
        {"reasoning_budget_tokens": 40},
        {"thinking_token_budget": 40},  # vLLM
        {"thinking_budget": 40},  # Alibaba
        {"thinking": {"type": "enabled", "budget_tokens": 40}},  # LiteLLM
        {"reasoning": {"max_tokens": 40}},  # OpenRouter
    ],
)
async def test_a_budget_of_chat_completions_ends_a_thought_and_the_answer_follows(
    service: Service, budget: dict[str, Any]
) -> None:
    reasoning, text, whole = await chat(service, **budget)
    own, _, conclusion = reasoning.partition("\n\n")
    assert THOUGHT.startswith(own)
    assert 30 < len(own) <= 40
    assert (conclusion, text) == (SENTENCE, "It is 4.")
    assert whole["timings"]["reasoning_cut_n"] <= 40
    n_reasoning_tokens = whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
    # The tags' tokens count as those of the text beside them in the piece that they came in, and pieces differ by load.
    assert len(reasoning) <= n_reasoning_tokens <= 40 + len(f"<think>\n\n\n{SENTENCE}\n</think>\n\n")
    assert "warnings" not in whole


async def test_without_a_budget_or_within_it_a_thought_is_whole(service: Service) -> None:
    for budget in ({}, {"thinking_budget_tokens": -1}, {"thinking_budget_tokens": 4000}, {"reasoning_effort": "low"}):
        reasoning, text, whole = await chat(service, **budget)
        assert (reasoning, text) == (THOUGHT.strip(), "It is 4.")
        assert "reasoning_cut_n" not in whole["timings"]


async def test_the_message_that_ends_a_thought_is_the_clients_where_it_has_one(service: Service) -> None:
    reasoning, text, _ = await chat(service, reasoning_budget_tokens=40, reasoning_budget_message="\nTime is up.")
    assert reasoning.endswith("\nTime is up.")
    assert text == "It is 4."


async def test_a_model_that_ignores_that_it_is_not_to_think_is_stopped_at_once(service: Service) -> None:
    for off in ({"reasoning_effort": "none"}, {"enable_thinking": False}, {"thinking": {"type": "disabled"}}):
        reasoning, text, whole = await chat(service, **off)
        assert (reasoning, text) == ("", "It is 4.")
        assert "warnings" not in whole


async def test_each_of_several_answers_has_its_budget(service: Service) -> None:
    body = {"messages": said(), "n": 3, "thinking_budget_tokens": 40, "temperature": 1.0}
    whole = await service.posted("/v1/chat/completions", body)
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["It is 4."] * 3
    assert all(len(choice["message"]["reasoning_content"]) < 42 + len(SENTENCE) for choice in whole["choices"])


async def test_a_grammar_begins_behind_a_thought_that_was_ended(service: Service) -> None:
    answer = '{"a": 1}'
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    messages = said(f"<think>\n{THOUGHT}\n</think>\n\n{answer}")
    _, text, _ = await chat(service, messages=messages, response_format=schema, thinking_budget_tokens=40)
    assert text == answer


async def test_budget_tokens_of_anthropic(service: Service) -> None:
    body = {"messages": said(), "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 40}}
    thought, text = (await service.posted("/v1/messages", body))["content"]
    assert thought["thinking"].endswith(SENTENCE)
    assert text["text"] == "It is 4."
    off = await service.posted("/v1/messages", body | {"thinking": {"type": "disabled"}})
    assert [part["type"] for part in off["content"]] == ["text"]
    assumed = await service.posted("/v1/messages", {name: body[name] for name in ("messages", "max_tokens")})
    assert assumed["content"][0]["thinking"] == THOUGHT.strip()


async def test_think_of_ollama(service: Service) -> None:
    body = {"messages": said(), "stream": False}
    off = await service.posted("/api/chat", body | {"think": False})
    assert off["message"] == {"role": "assistant", "content": "It is 4."}
    for think in (True, "low"):
        on = await service.posted("/api/chat", body | {"think": think})
        assert on["message"]["thinking"] == THOUGHT.strip()


async def test_effort_of_responses(service: Service) -> None:
    body = {"input": f"<say>{SAID}</say>", "reasoning": {"effort": "none"}}
    off = await service.posted("/v1/responses", body)
    assert [item["type"] for item in off["output"]] == ["message"]
    on = await service.posted("/v1/responses", body | {"reasoning": {"effort": "low"}})
    assert [item["type"] for item in on["output"]] == ["reasoning", "message"]
    assert on["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


async def test_an_effort_is_a_budget_for_a_template_that_knows_none(service: Service) -> None:
    messages = said(f"<think>\n{'so and ' * 200}\n</think>\n\nIt is 4.")
    reasoning, text, whole = await chat(service, messages=messages, reasoning_effort="low")
    assert 1000 < len(reasoning.partition("\n\n")[0]) <= 1024
    assert (text, whole["timings"]["reasoning_cut_n"] <= 1024) == ("It is 4.", True)


@pytest.mark.parametrize("has_tools", [False, True])
async def test_the_thought_of_gpt_oss_ends_with_its_message(tmp_path: Path, tiny_model: Path, has_tools: bool) -> None:
    function = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    tools = {"tools": [{"type": "function", "function": function}]} if has_tools else {}
    async with serving(tmp_path, tiny_model, step_ms=0) as service:
        await service.make(MADE, template=GPT_OSS)
        reasoning, text, _ = await chat(service, messages=said(HARMONY_SAID), thinking_budget_tokens=40, **tools)
    assert THOUGHT.startswith(reasoning)
    assert 30 < len(reasoning) <= 40
    assert text == "It is 4."


async def thinking_id(service: Service) -> str:
    """Return the id of the running request once it has thought a little."""
    for _ in range(10_000):
        for engine in service.models.engines.values():
            metrics = await engine.metrics()
            for answer in metrics.running if metrics else ():
                if answer.n_output_tokens > 20:
                    return answer.request_id
        await asyncio.sleep(0.01)
    raise AssertionError("no answer runs")


async def test_a_running_thought_is_ended_over_http(tmp_path: Path, tiny_model: Path) -> None:
    async with serving(tmp_path, tiny_model, step_ms=20) as service:
        await service.make(MADE, template=QWEN)
        for path in ("/api/localllm/requests/chatcmpl-{}/end-thought", "/v1/chat/completions/control"):
            body = {"messages": said(), "speculative.n_max": 0, "model": MADE}
            asked = asyncio.create_task(service.http.post("/v1/chat/completions", json=body))
            request_id = await thinking_id(service)
            control = {"id": f"chatcmpl-{request_id}", "action": "reasoning_end"}
            assert (await service.http.post(path.format(request_id), json=control)).status_code == 200
            message = (await asked).json()["choices"][0]["message"]
            own, _, conclusion = message["reasoning_content"].partition("\n\n")
            assert len(own) < len(THOUGHT.strip())
            assert (conclusion, message["content"]) == (SENTENCE, "It is 4.")


async def test_a_response_that_does_not_run_has_no_thought_to_end(service: Service) -> None:
    refused = await service.http.post("/api/localllm/requests/chatcmpl-0/end-thought")
    assert refused.status_code == 404
    assert "No response" in refused.json()["error"]["message"]
    told = await service.http.post("/v1/chat/completions/control", json={"id": "x", "action": "reasoning_end"})
    assert told.json() == {"success": False, "message": "no active completion for this id"}
    other = await service.http.post("/v1/chat/completions/control", json={"id": "x", "action": "stop"})
    assert other.status_code == 400
