from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.engine.chat_template.render import render
from app.protocol.chat import Message
from app.protocol.errors import RequestError
from app.service.generation.thinking import LEVELS, Thinking, served_thinking
from tests.app.service.role_sequences import published_templates

# What the chat template of each family asks, written anew.
QWEN3 = "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>{% endif %}"
DEEPSEEK = "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{% if thinking %}<think>{% endif %}"
GPT_OSS = "{% set r = reasoning_effort if reasoning_effort is defined else 'medium' %}{{ message.thinking }}"
MISTRAL_4 = "{% if reasoning_effort not in ['none', 'high'] %}{{ raise_exception('x') }}{% endif %}"
HUNYUAN_3 = "{% if reasoning_effort not in ['high', 'low', 'no_think'] %}{{ raise_exception('x') }}{% endif %}"
COMMAND_A = '{% set x = false if reasoning_effort is defined and reasoning_effort | lower == "none" else true %}'
SOLAR = '{% if reasoning_effort in ["low", "minimal"] %}'
DEEPSEEK_4 = "{% if thinking and reasoning_effort is defined and reasoning_effort == 'max' %}"
KIMI_K3 = "{% if thinking and thinking_effort not in ['low', 'high', 'max'] %}{{ raise_exception('x') }}{% endif %}"
SEED = "{% if not thinking_budget is defined %}{% endif %}{% if thinking_budget == 0 %}"
MINIMAX_M3 = '{% if thinking_mode is defined and thinking_mode == "disabled" %}'
NEMOTRON_2 = (
    "{% set ns = namespace(enable_thinking=true) %}{% if '/no_think' in content %}{% endif %}{{ ns.enable_thinking }}"
)

OFF, ON, LOW, MEDIUM, HIGH, MAX = (
    Thinking(is_on=False),
    Thinking(is_on=True),
    *(Thinking(effort=effort) for effort in ("low", "medium", "high", "max")),
)


@pytest.mark.parametrize(
    ("template", "thinking", "variables"),
    [
        (QWEN3, Thinking(), {}),
        (QWEN3, OFF, {"enable_thinking": False}),
        (QWEN3, Thinking(effort="none"), {"enable_thinking": False}),
        (QWEN3, Thinking(n_tokens=0), {"enable_thinking": False}),
        (QWEN3, LOW, {"enable_thinking": True}),
        (QWEN3, Thinking(n_tokens=5000), {"enable_thinking": True}),
        (DEEPSEEK, ON, {"thinking": True}),
        (DEEPSEEK, OFF, {"thinking": False}),
        (GPT_OSS, Thinking(), {}),
        (GPT_OSS, ON, {}),
        (GPT_OSS, OFF, {"reasoning_effort": "low"}),
        (GPT_OSS, Thinking(is_on=False, effort="high"), {"reasoning_effort": "high"}),
        (GPT_OSS, HIGH, {"reasoning_effort": "high"}),
        (GPT_OSS, MAX, {"reasoning_effort": "high"}),
        (GPT_OSS, Thinking(n_tokens=1024), {"reasoning_effort": "low"}),
        (GPT_OSS, Thinking(n_tokens=4000), {"reasoning_effort": "medium"}),
        (GPT_OSS, Thinking(n_tokens=31999), {"reasoning_effort": "high"}),
        (MISTRAL_4, OFF, {"reasoning_effort": "none"}),
        (MISTRAL_4, ON, {"reasoning_effort": "high"}),
        (MISTRAL_4, LOW, {"reasoning_effort": "high"}),
        (HUNYUAN_3, OFF, {"reasoning_effort": "no_think"}),
        (HUNYUAN_3, LOW, {"reasoning_effort": "low"}),
        (HUNYUAN_3, MEDIUM, {"reasoning_effort": "high"}),
        (COMMAND_A, OFF, {"reasoning_effort": "none"}),
        (COMMAND_A, HIGH, {"reasoning_effort": "high"}),
        (SOLAR, OFF, {"reasoning_effort": "minimal"}),
        (SOLAR, HIGH, {"reasoning_effort": "high"}),
        (DEEPSEEK_4, MAX, {"thinking": True, "reasoning_effort": "max"}),
        (KIMI_K3, MEDIUM, {"thinking": True, "thinking_effort": "high"}),
        (KIMI_K3, OFF, {"thinking": False, "thinking_effort": "low"}),
        (SEED, OFF, {"thinking_budget": 0}),
        (SEED, LOW, {"thinking_budget": 512}),
        (SEED, MAX, {"thinking_budget": -1}),
        (SEED, ON, {}),
        (SEED, Thinking(n_tokens=3000), {"thinking_budget": 3000}),
        (MINIMAX_M3, OFF, {"thinking_mode": "disabled"}),
        (MINIMAX_M3, ON, {"thinking_mode": "enabled"}),
        (NEMOTRON_2, OFF, {}),
        ("{{ messages }} I was thinking {# thinking #} {{ 'no thinking' }} {% if x[\"thinking\"] %}", HIGH, {}),
        ("{{ it's thinking }", HIGH, {}),
        ("{{ messages }}", HIGH, {}),
    ],
)  # fmt: skip
def test_each_template_is_told_by_its_own_variables(
    template: str, thinking: Thinking, variables: dict[str, Any]
) -> None:
    assert thinking.for_template(template) == variables


@pytest.mark.parametrize("template", [MISTRAL_4, HUNYUAN_3, KIMI_K3])
@pytest.mark.parametrize("level", ["", *LEVELS])
@pytest.mark.parametrize("is_on", [False, True])
def test_a_template_that_refuses_levels_gets_one_of_its_own(template: str, level: str, is_on: bool) -> None:
    variables = Thinking(is_on=is_on, effort=level).for_template(template)
    assert render(template, {"reasoning_effort": "high", "thinking_effort": "max", **variables}) == ""


# What llama-server tells to think, as it does everyone, and we leave as the makers' template is.
LEFT_AS_THEY_ARE = {
    "Apertus-8B-Instruct",
    "Bielik-11B-v3.0-Instruct",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "Reka-Edge",
    "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-V3.2",
    "google-gemma-4-31B-it",
    "google-gemma-4-31B-it-interleaved",
    "llama-cpp-rwkv-world",
    "openbmb-MiniCPM5-1B",
    "poolside-Laguna-XS-2.1",
    "poolside-Laguna-XS.2",
}
SERVED_THINKING = {
    "Qwen-QwQ-32B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V4",
    "deepseek-ai-DeepSeek-V4-Flash-0731",
}
PUBLISHED = published_templates()


@pytest.mark.slow
@pytest.mark.skipif(not PUBLISHED, reason="llama.cpp's source is not here")
def test_where_nobody_says_it_a_model_thinks_as_its_makers_serve_it() -> None:
    def prompt(template: str, **variables: Any) -> str:
        about = {"messages": [{"role": "user", "content": "hello"}], "add_generation_prompt": True}
        return render(template, {**about, "bos_token": "<s>", "eos_token": "</s>", "tools": None, **variables})

    of_servers = {name: prompt(template, enable_thinking=True) for name, template in PUBLISHED.items()}
    usual = {name: prompt(template, **Thinking().for_template(template)) for name, template in PUBLISHED.items()}
    assert {name for name in PUBLISHED if usual[name] != of_servers[name]} == LEFT_AS_THEY_ARE
    assert {name for name, template in PUBLISHED.items() if served_thinking(template)} == SERVED_THINKING


def test_a_switch_of_the_client_counts_over_what_makers_serve() -> None:
    template = "{% if drop_thinking %}DSML{% endif %}{% if thinking %}{% elif enable_thinking %}{% endif %}"
    assert Thinking().for_template(template) == {"enable_thinking": True, "thinking": True}
    assert Thinking(variables={"enable_thinking": False}).for_template(template) == {"enable_thinking": False}
    assert Thinking(is_on=False).for_template(template) == {"enable_thinking": False, "thinking": False}
    assert Thinking(variables={"other": 1}).for_template(template)["thinking"] is True


def test_the_variables_of_a_client_count_over_its_level() -> None:
    thinking = Thinking(effort="low", variables={"enable_thinking": False, "clear_thinking": False})
    assert thinking.for_template(QWEN3) == {"enable_thinking": False, "clear_thinking": False}


@pytest.mark.parametrize("template", [QWEN3, GPT_OSS, SEED, "{{ messages }}"])
def test_a_model_that_is_not_to_think_gets_no_tokens_for_it(template: str) -> None:
    for thinking in (OFF, Thinking(effort="none"), Thinking(n_tokens=0), Thinking(is_on=False, n_tokens=9)):
        assert thinking.n_most_tokens(template) == 0
    assert replace(OFF, is_assumed=True).n_most_tokens(template) is None


@pytest.mark.parametrize("template", [QWEN3, GPT_OSS, SEED])
def test_a_budget_limits_every_model(template: str) -> None:
    assert Thinking(n_tokens=1234).n_most_tokens(template) == 1234
    assert Thinking(n_tokens=1234, effort="high").n_most_tokens(template) == 1234
    assert Thinking(n_tokens=10**12).n_most_tokens(template) == 2**31 - 1
    for unlimited in (Thinking(), ON, Thinking(n_tokens=-1), Thinking(n_tokens=-1, effort="low"), MAX):
        assert unlimited.n_most_tokens(template) is None


def test_an_effort_is_a_budget_where_the_template_knows_none() -> None:
    wanted = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24576, "xhigh": None, "max": None}
    for effort, n_tokens in wanted.items():
        assert Thinking(effort=effort).n_most_tokens(QWEN3) == n_tokens
        for template in (GPT_OSS, KIMI_K3, SEED, DEEPSEEK_4):
            assert Thinking(effort=effort).n_most_tokens(template) is None


def test_a_template_that_reads_a_word_gets_it_in_the_first_message() -> None:
    messages = [Message("system", "Be brief."), Message("user", "Hi")]
    assert OFF.in_messages(messages, NEMOTRON_2)[0] == Message("system", "Be brief. /no_think")
    assert ON.in_messages(messages[1:], NEMOTRON_2) == [Message("user", "Hi /think")]
    assert Thinking().in_messages(messages, NEMOTRON_2) == messages
    assert OFF.in_messages(messages, QWEN3) == messages


def test_unknown_levels_and_foreign_variables_are_refused() -> None:
    with pytest.raises(RequestError, match="very"):
        Thinking(effort="very")
    with pytest.raises(RequestError, match="tools"):
        Thinking(variables={"tools": []})
