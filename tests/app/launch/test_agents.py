"""What each agent is told of the service: variables, arguments and files, without the key."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest

from app.launch.agents import AGENTS, FOLDER, KEY, Agent, Start, Target, TargetModel, agent_named

URL = "http://127.0.0.1:11500"
TARGET = Target(URL, TargetModel("qwen3-coder:30b-q4_K_M", 40_960))
SECOND = TargetModel("qwen3:4b", 20_480)
BOTH = Target(URL, TARGET.main, SECOND)
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
    named = {text for text in (*start.arguments, *start.environment.values()) if FOLDER in text}
    assert named in ({f"{FOLDER}/{name}" for name in start.files}, {FOLDER}), "each, or the folder that has them"
    assert bool(named) == bool(start.files)


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
    assert models >= {f"ANTHROPIC_DEFAULT_{kind}_MODEL" for kind in ("FABLE", "OPUS", "SONNET", "HAIKU")}
    assert "ANTHROPIC_MODEL" in models
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "40960"
    assert variables["CLAUDE_CODE_TOTAL_TOKENS_REMINDER"] == "off", "it would change a prompt that is kept"
    assert start.environment["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert {"ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"} <= {*start.removed}


@pytest.mark.parametrize("model", ["guide", "qwen3-coder:30b-q4_K_M", "true", "inf", "7b", "a b", "it's", 'q"uote'])
def test_codex_reads_every_model_as_a_text(model: str) -> None:
    flags = _start("codex", Target(URL, TargetModel(model, 32_768))).arguments
    assert set(flags[::2]) == {"-c"}
    read = dict(map(_as_codex_reads_it, flags[1::2]))
    assert read == {
        "model": model,
        "model_provider": "localllm",
        "model_context_window": 32_768,
        "analytics.enabled": False,
        "check_for_update_on_startup": False,
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
    model = f"ollama_chat/{TARGET.model}"
    assert start.arguments == ("--model", model, "--weak-model", model)
    assert start.environment.items() >= {"OLLAMA_API_BASE": URL, "OLLAMA_API_KEY": KEY}.items()


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
    text = _start("pi", Target(URL, TargetModel('q"uote', 16_384))).files["localllm.ts"]
    match = re.fullmatch(r'export default \(pi\) => pi\.registerProvider\("localllm", (\{.*\})\);\n', text)
    assert match is not None
    provider = json.loads(match[1].replace("process.env.LOCALLLM_RUN_KEY", '"key"'))
    assert provider["apiKey"] == "key"
    assert (provider["models"][0]["id"], provider["models"][0]["contextWindow"]) == ('q"uote', 16_384)


def test_an_answer_leaves_room_for_the_prompt_in_a_short_context() -> None:
    assert TargetModel("m", 4096).n_output == 1024
    assert TargetModel("m", 262_144).n_output == 8192


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent.small_tasks], ids=lambda agent: agent.name)
def test_small_tasks_go_to_the_second_model_and_no_other_setting_changes(agent: Agent) -> None:
    alone, both = _texts(agent.start(TARGET)), _texts(agent.start(BOTH))
    assert SECOND.id not in alone
    assert SECOND.id in both
    assert TARGET.model in both
    assert agent.start(BOTH).removed == agent.start(TARGET).removed


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if not agent.small_tasks], ids=lambda agent: agent.name)
def test_an_agent_without_small_tasks_is_not_told_of_a_second_model(agent: Agent) -> None:
    assert SECOND.id not in _texts(agent.start(BOTH))


def test_a_model_of_claude_codes_small_tasks_is_named_by_the_old_and_the_new_variable() -> None:
    variables = _start("claude", BOTH).environment
    small = {name for name, value in variables.items() if value == SECOND.id}
    assert small == {"ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_SMALL_FAST_MODEL"}


@pytest.mark.parametrize("agent", ["opencode", "crush", "openclaw"])
def test_an_agent_with_a_table_of_models_knows_the_context_of_each(agent: str) -> None:
    assert {"40960", "20480"} <= set(re.findall(r"\d+", _texts(_start(agent, BOTH))))


def test_cline_has_its_provider_in_a_file_without_a_key_and_leaves_no_daemon_behind() -> None:
    start = _start("cline")
    providers = json.loads(start.files["providers.json"])
    assert providers["lastUsedProvider"] == "openai-compatible"
    (settings,) = (entry["settings"] for entry in providers["providers"].values())
    assert (settings["baseUrl"], settings["contextWindow"], settings["maxTokens"]) == (f"{URL}/v1", 40_960, 8192)
    assert "apiKey" not in settings
    assert start.environment["CLINE_SESSION_BACKEND_MODE"] == "local"


def test_hermes_has_settings_that_win_over_the_users_with_the_key_from_the_environment() -> None:
    start = _start("hermes", BOTH)
    settings = json.loads(start.files["config.yaml"])
    assert start.environment["HERMES_MANAGED_DIR"] == FOLDER
    assert settings["model"]["api_key"] == "${LOCALLLM_RUN_KEY}"
    assert (settings["model"]["context_length"], settings["model"]["max_tokens"]) == (40_960, 8192)
    assert settings["auxiliary"]["title_generation"]["model"] == SECOND.id


def test_crush_reads_our_provider_after_the_users_settings() -> None:
    start = _start("crush", BOTH)
    settings = json.loads(start.files["crush.json"])
    assert start.environment["CRUSH_GLOBAL_DATA"] == FOLDER
    assert settings["providers"]["localllm"]["api_key"] == "$LOCALLLM_RUN_KEY"
    assert {kind: model["model"] for kind, model in settings["models"].items()} == {
        "large": TARGET.model,
        "small": SECOND.id,
    }


def test_goose_has_no_model_of_openai_left() -> None:
    start = _start("goose")
    models = {value for name, value in start.environment.items() if name.endswith("_MODEL")}
    assert models == {TARGET.model}
    assert start.environment["OPENAI_HOST"] == URL
    assert "OPENAI_BASE_URL" in start.removed


@pytest.mark.parametrize("agent", AGENTS, ids=IDS)
def test_an_agent_was_run_in_a_version_or_names_its_source(agent: Agent) -> None:
    assert bool(agent.tested) != bool(agent.source) or not agent.takes_settings
