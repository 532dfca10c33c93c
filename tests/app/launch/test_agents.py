"""What each agent is told of the service: variables, arguments and files, without the key."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest

from app.launch.agents import AGENTS, FOLDER, KEY, Agent, Start, Target, agent_named

URL = "http://127.0.0.1:11500"
TARGET = Target(URL, "qwen3-coder:30b-q4_K_M", 40_960)
IDS = [agent.name for agent in AGENTS]


def _start(name: str, target: Target = TARGET) -> Start:
    agent = agent_named(name)
    assert agent is not None
    return agent.start(target)


def _texts(start: Start) -> str:
    return "\n".join((*start.arguments, *start.environment.values(), *start.files.values()))


@pytest.mark.parametrize("agent", AGENTS, ids=IDS)
def test_the_key_is_in_one_variable_and_nowhere_else(agent: Agent) -> None:
    start = agent.start(TARGET)
    assert list(start.environment.values()).count(KEY) == 1
    assert KEY not in "".join((*start.arguments, *start.files.values()))


@pytest.mark.parametrize("agent", AGENTS, ids=IDS)
def test_an_agent_is_told_of_the_service_its_model_and_its_context(agent: Agent) -> None:
    start = agent.start(TARGET)
    if not agent.takes_settings:
        assert URL not in _texts(start)
        return
    assert URL in _texts(start)
    assert TARGET.model in _texts(start)
    assert "40960" in _texts(start) or "32768" in _texts(start) or agent.name == "aider", "which asks /api/show"


@pytest.mark.parametrize("agent", AGENTS, ids=IDS)
def test_files_are_named_by_an_argument_or_a_variable(agent: Agent) -> None:
    start = agent.start(TARGET)
    named = {*start.arguments, *start.environment.values()}
    assert {f"{FOLDER}/{name}" for name in start.files} == {text for text in named if FOLDER in text}


@pytest.mark.parametrize("agent", AGENTS, ids=IDS)
def test_the_arguments_of_an_agent_pass_through_a_batch_file_of_windows(agent: Agent) -> None:
    assert not set('"%&|<>^!\n') & set("".join(agent.start(TARGET).arguments).replace(FOLDER, ""))


def test_names_of_commands_and_editors_find_their_agent_and_no_name_is_taken_twice() -> None:
    names = [name for agent in AGENTS for name in agent.names]
    assert len(names) == len(set(names))
    assert agent_named("Claude-Code") is agent_named("claude") is not None
    assert agent_named("") is agent_named("vim") is None


def test_claude_code_has_one_model_for_everything_also_against_the_users_settings_file() -> None:
    start = _start("claude")
    variables = json.loads(start.files["settings.json"])["env"]
    assert {name: value for name, value in start.environment.items() if value != KEY} == variables
    models = {name for name, value in variables.items() if value == TARGET.model}
    assert models >= {"ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL"}
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "40960"
    assert variables["CLAUDE_CODE_TOTAL_TOKENS_REMINDER"] == "off", "it would change a prompt that is kept"
    assert start.environment["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert {"ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"} <= {*start.removed}


@pytest.mark.parametrize("model", ["guide", "qwen3-coder:30b-q4_K_M", "true", "inf", "7b", "a b", "it's", 'q"uote'])
def test_codex_reads_every_model_as_a_text(model: str) -> None:
    flags = _start("codex", Target(URL, model, 32_768)).arguments
    assert set(flags[::2]) == {"-c"}
    read = dict(map(_as_codex_reads_it, flags[1::2]))
    assert read == {
        "model": model,
        "model_provider": "localllm",
        "model_context_window": 32_768,
        "features.api_key_model_discovery": True,
        "model_providers.localllm.name": "localllm",
        "model_providers.localllm.base_url": f"{URL}/v1",
        "model_providers.localllm.model_catalog_url": f"{URL}/v1/models",
        "model_providers.localllm.wire_api": "responses",
        "model_providers.localllm.env_key": "LOCALLLM_RUN_KEY",
    }


def _as_codex_reads_it(flag: str) -> tuple[str, Any]:
    """A value is TOML, or else a text (source: `codex --help` of 0.169)."""
    name, _, text = flag.partition("=")
    try:
        return name, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return name, text


@pytest.mark.parametrize(
    ("agent", "variable"), [("opencode", "OPENCODE_CONFIG_CONTENT"), ("kilo", "KILO_CONFIG_CONTENT")]
)
def test_opencode_and_kilo_have_their_whole_configuration_in_a_variable(agent: str, variable: str) -> None:
    start = _start(agent)
    settings = json.loads(start.environment[variable])
    provider = settings["provider"]["localllm"]
    assert settings["model"] == settings["small_model"] == f"localllm/{TARGET.model}"
    assert provider["options"] == {"baseURL": f"{URL}/v1", "apiKey": "{env:LOCALLLM_RUN_KEY}"}
    assert provider["models"][TARGET.model]["limit"] == {"context": 40_960, "output": 8192}


def test_aider_speaks_ollamas_dialect_which_knows_the_context() -> None:
    start = _start("aider")
    assert start.arguments == ("--model", f"ollama_chat/{TARGET.model}")
    assert start.environment == {"OLLAMA_API_BASE": URL, "OLLAMA_API_KEY": KEY}


def test_qwen_code_learns_of_the_context_by_defaults_that_the_users_settings_still_win_over() -> None:
    start = _start("qwen")
    assert start.environment["QWEN_CODE_SYSTEM_DEFAULTS_PATH"] == f"{FOLDER}/defaults.json"
    assert json.loads(start.files["defaults.json"])["model"]["generationConfig"]["contextWindowSize"] == 40_960


def test_continue_reads_the_key_from_the_environment() -> None:
    (model,) = json.loads(_start("cn").files["config.yaml"])["models"]
    assert model["apiKey"] == "${{ secrets.LOCALLLM_RUN_KEY }}"
    assert model["apiBase"] == f"{URL}/v1"


def test_copilot_has_prompt_and_answer_within_the_context() -> None:
    variables = _start("copilot").environment
    limits = [int(variables[f"COPILOT_PROVIDER_MAX_{kind}_TOKENS"]) for kind in ("PROMPT", "OUTPUT")]
    assert sum(limits) == 40_960


def test_pi_registers_a_provider_in_an_extension_with_the_key_from_the_environment() -> None:
    text = _start("pi", Target(URL, 'q"uote', 16_384)).files["localllm.ts"]
    match = re.fullmatch(r'export default \(pi\) => pi\.registerProvider\("localllm", (\{.*\})\);\n', text)
    assert match is not None
    provider = json.loads(match[1].replace("process.env.LOCALLLM_RUN_KEY", '"key"'))
    assert provider["apiKey"] == "key"
    assert (provider["models"][0]["id"], provider["models"][0]["contextWindow"]) == ('q"uote', 16_384)


def test_an_answer_leaves_room_for_the_prompt_in_a_short_context() -> None:
    assert Target(URL, "m", 4096).n_output == 1024
    assert Target(URL, "m", 262_144).n_output == 8192
