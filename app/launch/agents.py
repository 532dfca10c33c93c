"""The coding agents that are started against the service: a table of what each needs and of its own variables.

Owns commands, packages, first prompts and how an agent is told of a service. Pure: starts, reads and writes nothing.
Values of variables may hold `KEY`, arguments and values `FOLDER`, in place of what only the run knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

KEY, FOLDER = "<key>", "<folder>"
KEY_VARIABLE = "LOCALLLM_RUN_KEY"  # for agents that are told the name of a variable
_MOST_OUTPUT = 8192
_OTHER_CONSTANTS = {"true", "false", "inf", "nan"}  # of TOML, which takes any other word of `-c` as a text
_WORD = re.compile(r"[A-Za-z_][\w./:@+-]*")


@dataclass(frozen=True, slots=True)
class TargetModel:
    """A model with its context in tokens."""

    id: str
    n_ctx: int

    @property
    def n_output(self) -> int:
        """The most tokens of an answer, so that a prompt of three quarters of the context still fits."""
        return min(_MOST_OUTPUT, self.n_ctx // 4)


@dataclass(frozen=True, slots=True)
class Target:
    """The service as an agent sees it: its address, its model, and a second one for small tasks, if there is one."""

    url: str
    main: TargetModel
    second: TargetModel | None = None

    @property
    def model(self) -> str:
        return self.main.id

    @property
    def n_ctx(self) -> int:
        return self.main.n_ctx

    @property
    def small(self) -> TargetModel:
        """The model for small tasks, the main one where there is no other."""
        return self.second or self.main

    @property
    def models(self) -> tuple[TargetModel, ...]:
        return (self.main,) if self.second is None else (self.main, self.second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How an agent is told of a service: arguments before the user's own, variables, and `files` of the run's folder.
    `removed` are variables of the user's that would lead it elsewhere."""

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContextNeed:
    """The tokens with which a session begins (counted with Qwen's tokenizer), and the context in which it can go on.
    `n_first` is 0 where nobody has counted them. `n_free` are those of the context that the agent never fills: it
    summarizes before. It refuses to start with a context below `n_least`."""

    n_first: int
    n_ctx: int
    n_free: int = 0
    n_least: int = 0


@dataclass(frozen=True, slots=True)
class SmallTasks:
    """What an agent leaves to a smaller model: `what`, as a part of a sentence. It needs a context of `n_ctx` tokens, 0
    for that of the main model, and a template with tools where it `needs_tools`."""

    what: str
    n_ctx: int = 0
    needs_tools: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A coding agent or an editor with one. `name` and `other_commands` are its names on PATH; `package` is what its
    registry calls it ("npm:" or "pypi:"), empty for others. `editor` is its name in `serve --editor`. One that
    `takes_settings` for a run is told of the service, any other has to be pointed there by hand. `default_arguments`
    follow where the user gives none. Versions before `least_version` do not read these settings. One that was never
    run has its settings from `source`, its code or documentation, instead of a `tested` version."""

    name: str
    title: str
    api: str
    start: Callable[[Target], Start]
    other_commands: tuple[str, ...] = ()
    how_to_install: str = ""
    package: str = ""
    need: ContextNeed | None = None
    needs_tools: bool = True
    tested: str = ""
    editor: str = ""
    takes_settings: bool = True
    default_arguments: tuple[str, ...] = ()
    small_tasks: SmallTasks | None = None
    least_version: str = ""
    source: str = ""

    @property
    def commands(self) -> tuple[str, ...]:
        return (self.name, *self.other_commands)

    @property
    def install(self) -> str:
        """The command that installs it, or "see" and an address."""
        return self.how_to_install or f"npm install -g {self.package.removeprefix('npm:')}"

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.name, *self.commands} | ({self.editor} if self.editor else set()))


def agent_named(name: str) -> Agent | None:
    """Return the agent that users call `name`, None where there is none."""
    return next((agent for agent in AGENTS if name.lower() in agent.names), None)


def claude_code_variables(target: Target) -> dict[str, str]:
    """Return what points Claude Code at a service, without a key: whichever model it may choose is one of ours."""
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{kind}_MODEL" for kind in ("FABLE", "OPUS", "SONNET")))
    return {
        "ANTHROPIC_BASE_URL": target.url,
        **dict.fromkeys(models, target.model),
        **dict.fromkeys(("ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_SMALL_FAST_MODEL"), target.small.id),
        # not CLAUDE_CODE_AUTO_COMPACT_WINDOW, which 2.1.332 takes for 100,000 at least
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.n_ctx),
    }


def _claude_code(target: Target) -> Start:
    variables = {
        **claude_code_variables(target),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # a count of tokens left, which is not that of this context (claude-code#88211), and changes with each prompt:
        # what follows it would have to be read again
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
    }
    return Start(
        # the variables of the user's settings file would win over those of the process, but not over these settings
        arguments=("--settings", f"{FOLDER}/settings.json"),
        environment={**variables, "ANTHROPIC_AUTH_TOKEN": KEY},
        removed=(
            "ANTHROPIC_API_KEY",
            "CLAUDE_CODE_SUBAGENT_MODEL",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_VERTEX",
            "CLAUDE_CODE_USE_FOUNDRY",
        ),
        files={"settings.json": _json({"env": variables})},
    )


def codex_settings(target: Target) -> dict[str, str | int]:
    """Return Codex's settings for a service, by their dotted names, without a key. Where its provider has a key too, it
    reads what the models can do from /v1/models (0.169 and later; earlier versions ignore both settings and guess)."""
    provider = "model_providers.localllm"
    return {
        "model": target.model,
        "model_provider": "localllm",
        "model_context_window": target.n_ctx,
        "features.api_key_model_discovery": True,
        f"{provider}.name": "localllm",
        f"{provider}.base_url": f"{target.url}/v1",
        f"{provider}.model_catalog_url": f"{target.url}/v1/models",
        f"{provider}.wire_api": "responses",
    }


def _codex(target: Target) -> Start:
    quiet = {"analytics.enabled": False, "check_for_update_on_startup": False}
    settings = {**codex_settings(target), **quiet, "model_providers.localllm.env_key": KEY_VARIABLE}
    flags = tuple(flag for name, value in settings.items() for flag in ("-c", f"{name}={_toml(value)}"))
    return Start(arguments=flags, environment={KEY_VARIABLE: KEY})


def opencode_settings(target: Target, api_key: str) -> dict[str, object]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "localllm",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": api_key},
        "models": {each.id: {"limit": {"context": each.n_ctx, "output": each.n_output}} for each in target.models},
    }
    chosen = {"model": f"localllm/{target.model}", "small_model": f"localllm/{target.small.id}"}
    return {"provider": {"localllm": provider}, **chosen}


def _opencode(target: Target, variable: str = "OPENCODE_CONFIG_CONTENT") -> Start:
    settings = {**opencode_settings(target, f"{{env:{KEY_VARIABLE}}}"), "autoupdate": False}
    return Start(environment={variable: json.dumps(settings), KEY_VARIABLE: KEY})


def _qwen_code(target: Target) -> Start:
    defaults = {
        "model": {"generationConfig": {"contextWindowSize": target.n_ctx}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
    }
    return Start(
        arguments=("--auth-type", "openai", "--model", target.model),
        environment={
            "OPENAI_BASE_URL": f"{target.url}/v1",
            "OPENAI_API_KEY": KEY,
            "OPENAI_MODEL": target.model,
            "QWEN_CODE_SYSTEM_DEFAULTS_PATH": f"{FOLDER}/defaults.json",
        },
        files={"defaults.json": _json(defaults)},
    )


def _continue(target: Target) -> Start:
    model = {
        "name": target.model,
        "provider": "openai",
        "model": target.model,
        "apiBase": f"{target.url}/v1",
        "apiKey": f"${{{{ secrets.{KEY_VARIABLE} }}}}",
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": {"contextLength": target.n_ctx, "maxTokens": target.main.n_output},
    }
    settings = {"name": "localllm", "version": "1.0.0", "schema": "v1", "models": [model]}
    return Start(
        arguments=("--config", f"{FOLDER}/config.yaml"),
        environment={KEY_VARIABLE: KEY, "CONTINUE_TELEMETRY_ENABLED": "0"},
        files={"config.yaml": _json(settings)},  # JSON is YAML too
    )


def _copilot(target: Target) -> Start:
    return Start(
        environment={
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_BASE_URL": f"{target.url}/v1",
            "COPILOT_PROVIDER_API_KEY": KEY,
            "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": str(target.n_ctx - target.main.n_output),
            "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": str(target.main.n_output),
            "COPILOT_MODEL": target.model,
            "COPILOT_OFFLINE": "true",
        },
        removed=("COPILOT_PROVIDER_BEARER_TOKEN", "COPILOT_PROVIDER_API_KEY_COMMAND", "COPILOT_PROVIDER_HEADERS"),
    )


def _aider(target: Target) -> Start:
    return Start(
        arguments=("--model", f"ollama_chat/{target.model}", "--weak-model", f"ollama_chat/{target.small.id}"),
        environment={
            "OLLAMA_API_BASE": target.url,
            "OLLAMA_API_KEY": KEY,
            "AIDER_ANALYTICS": "false",
            "AIDER_CHECK_UPDATE": "false",
        },
    )


def _pi(target: Target) -> Start:
    provider = {"baseUrl": f"{target.url}/v1", "api": "openai-completions", "models": [_priced_model(target.main)]}
    text = json.dumps(provider)[1:]
    extension = (
        f'export default (pi) => pi.registerProvider("localllm", {{"apiKey": process.env.{KEY_VARIABLE}, {text});\n'
    )
    return Start(
        arguments=("--extension", f"{FOLDER}/localllm.ts", "--provider", "localllm", "--model", target.model),
        environment={KEY_VARIABLE: KEY, "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"},
        files={"localllm.ts": extension},
    )


def _priced_model(model: TargetModel) -> dict[str, object]:
    """Return a model as pi, and OpenClaw which is made with it, have it in their settings: it costs nothing."""
    return {
        "id": model.id,
        "name": model.id,
        "reasoning": False,
        "input": ["text"],
        "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
        "contextWindow": model.n_ctx,
        "maxTokens": model.n_output,
    }


def _cline(target: Target) -> Start:
    provider = "openai-compatible"
    settings = {
        "provider": provider,
        "baseUrl": f"{target.url}/v1",
        "model": target.model,
        "contextWindow": target.n_ctx,
        "maxTokens": target.main.n_output,
    }
    entry = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    providers = {"version": 1, "lastUsedProvider": provider, "modes": {}, "providers": {provider: entry}}
    return Start(
        environment={
            "CLINE_PROVIDER_SETTINGS_PATH": f"{FOLDER}/providers.json",
            "OPENAI_API_KEY": KEY,
            "CLINE_NO_AUTO_UPDATE": "1",
            # in its own process: a daemon would outlive the run, with these settings for whoever uses it next
            "CLINE_SESSION_BACKEND_MODE": "local",
        },
        files={"providers.json": _json(providers)},
    )


def goose_variables(target: Target) -> dict[str, str]:
    """Return what points goose at a service, without a key. They win over its settings file."""
    return {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": target.model,
        "GOOSE_PLANNER_PROVIDER": "openai",
        "GOOSE_PLANNER_MODEL": target.model,
        "GOOSE_FAST_MODEL": target.model,  # of versions with one, which name a model of OpenAI otherwise
        "GOOSE_CONTEXT_LIMIT": str(target.n_ctx),
        "GOOSE_MAX_TOKENS": str(target.main.n_output),
        "OPENAI_HOST": target.url,
        "OPENAI_BASE_PATH": "v1/chat/completions",
    }


def _goose(target: Target) -> Start:
    return Start(
        environment={**goose_variables(target), "OPENAI_API_KEY": KEY, "GOOSE_TELEMETRY_ENABLED": "false"},
        removed=("OPENAI_BASE_URL", "OPENAI_CUSTOM_HEADERS", "OPENAI_ORGANIZATION", "OPENAI_PROJECT"),
    )


def crush_settings(target: Target, api_key: str) -> dict[str, object]:
    provider = {
        "name": "localllm",
        "type": "openai-compat",
        "base_url": f"{target.url}/v1",
        "api_key": api_key,
        "models": [
            {"id": each.id, "name": each.id, "context_window": each.n_ctx, "default_max_tokens": each.n_output}
            for each in target.models
        ],
    }
    large, small = (
        {"provider": "localllm", "model": each.id, "max_tokens": each.n_output} for each in (target.main, target.small)
    )
    return {"providers": {"localllm": provider}, "models": {"large": large, "small": small}}


def _crush(target: Target) -> Start:
    # its folder of data, which it reads after the user's settings, so that those count but for provider and models
    return Start(
        environment={
            "CRUSH_GLOBAL_DATA": FOLDER,
            KEY_VARIABLE: KEY,
            "CRUSH_DISABLE_METRICS": "1",
            "CRUSH_DISABLE_PROVIDER_AUTO_UPDATE": "1",
        },
        removed=("CRUSH_CLIENT_SERVER",),  # a server that runs already has other settings
        files={"crush.json": _json(crush_settings(target, f"${KEY_VARIABLE}"))},
    )


def _hermes(target: Target) -> Start:
    service = {"provider": "custom", "base_url": f"{target.url}/v1", "api_key": f"${{{KEY_VARIABLE}}}"}
    sizes = {"context_length": target.n_ctx, "max_tokens": target.main.n_output}
    settings = {
        "model": {**service, "default": target.model, **sizes},
        "auxiliary": {"title_generation": {**service, "model": target.small.id}},
    }
    # "managed" settings, which win over the user's name by name
    return Start(
        environment={"HERMES_MANAGED_DIR": FOLDER, KEY_VARIABLE: KEY},
        files={"config.yaml": _json(settings)},  # JSON is YAML too
    )


def _openclaw(target: Target) -> Start:
    provider = {
        "baseUrl": f"{target.url}/v1",
        "apiKey": f"${{{KEY_VARIABLE}}}",
        "api": "openai-completions",
        "models": [_priced_model(each) for each in target.models],
    }
    chosen = {
        "model": {"primary": f"localllm/{target.model}", "fallbacks": []},
        "utilityModel": f"localllm/{target.small.id}",
    }
    settings = {
        "agents": {"defaults": chosen},
        "models": {"mode": "merge", "providers": {"localllm": provider}},
        "update": {"checkOnStart": False},
        "telemetry": {"enabled": False},
    }
    return Start(
        environment={"OPENCLAW_CONFIG_PATH": f"{FOLDER}/openclaw.json", KEY_VARIABLE: KEY},
        files={"openclaw.json": _json(settings)},
    )


def _json(value: object) -> str:
    return f"{json.dumps(value, indent=2)}\n"


def _toml(value: str | int) -> str:
    """Return a value as `codex -c` reads it: bare where that is a text too, for a shim of Windows breaks quotes."""
    is_bare = isinstance(value, str) and _WORD.fullmatch(value) and value not in _OTHER_CONSTANTS
    return str(value) if is_bare else json.dumps(value)


_TITLES = SmallTasks("titles", 16_384)

# First prompts: what the tested version sends in one-shot mode, Claude Code and OpenClaw as in a terminal, where they
# have more tools.
AGENTS: tuple[Agent, ...] = (
    Agent(
        name="claude",
        title="Claude Code",
        package="npm:@anthropic-ai/claude-code",
        api="/v1/messages",
        start=_claude_code,
        small_tasks=SmallTasks("web pages, titles and agents on Haiku", needs_tools=True),
        need=ContextNeed(13_000, 65_536, n_free=33_000),  # 2.1.197 began with 35,000
        tested="2.1.332",
        editor="claude-code",
    ),
    Agent(
        name="codex",
        title="Codex",
        package="npm:@openai/codex",
        api="/v1/responses",
        start=_codex,
        need=ContextNeed(4_800, 32_768),  # 8,500 where it asks for no catalogue, with instructions of its own
        tested="0.171.0",
        editor="codex",
    ),
    Agent(
        name="opencode",
        title="opencode",
        package="npm:opencode-ai",
        api="/v1/chat/completions",
        start=_opencode,
        small_tasks=_TITLES,
        need=ContextNeed(7_500, 32_768),
        tested="1.18.33",
        editor="opencode",
    ),
    Agent(
        name="aider",
        title="aider",
        package="pypi:aider-chat",
        how_to_install="uv tool install --python 3.12 aider-chat",
        api="/api/chat",
        start=_aider,
        small_tasks=SmallTasks("commit messages and summaries", 16_384),
        need=ContextNeed(2_500, 16_384),
        needs_tools=False,
        tested="0.86.2",
        editor="aider",
    ),
    Agent(
        name="qwen",
        title="Qwen Code",
        package="npm:@qwen-code/qwen-code",
        api="/v1/chat/completions",
        start=_qwen_code,
        need=ContextNeed(17_000, 32_768),
        tested="0.24.4",
        editor="qwen-code",
    ),
    Agent(
        name="cn",
        title="Continue CLI",
        package="npm:@continuedev/cli",
        api="/v1/chat/completions",
        start=_continue,
        need=ContextNeed(1_900, 16_384),
        tested="1.5.47",
    ),
    Agent(
        name="copilot",
        title="GitHub Copilot CLI",
        package="npm:@github/copilot",
        api="/v1/chat/completions",
        start=_copilot,
        need=ContextNeed(11_000, 32_768),
        tested="1.0.102",
    ),
    Agent(
        name="pi",
        title="pi",
        package="npm:@earendil-works/pi-coding-agent",
        api="/v1/chat/completions",
        start=_pi,
        need=ContextNeed(1_400, 16_384),
        tested="1.6.0",
    ),
    Agent(
        name="kilo",
        title="Kilo Code CLI",
        package="npm:@kilocode/cli",
        api="/v1/chat/completions",
        start=lambda target: _opencode(target, "KILO_CONFIG_CONTENT"),  # made from opencode
        small_tasks=_TITLES,
        need=ContextNeed(14_000, 32_768),
        tested="7.7.7",
    ),
    Agent(
        name="cline",
        title="Cline CLI",
        package="npm:cline",
        api="/v1/chat/completions",
        start=_cline,
        need=ContextNeed(5_400, 32_768),
        tested="3.0.65",
        least_version="3.0.0",
        editor="cline-cli",
    ),
    Agent(
        name="hermes",
        title="Hermes Agent",
        package="pypi:hermes-agent",
        how_to_install="uv tool install --python 3.12 hermes-agent",
        api="/v1/chat/completions",
        start=_hermes,
        need=ContextNeed(13_200, 65_536, n_least=64_000),
        small_tasks=_TITLES,
        tested="0.19.0",
        least_version="0.19.0",
    ),
    Agent(
        name="openclaw",
        title="OpenClaw",
        package="npm:openclaw",
        api="/v1/chat/completions",
        start=_openclaw,
        need=ContextNeed(13_900, 32_768),
        small_tasks=_TITLES,
        tested="2026.9.6",
        default_arguments=("chat",),
    ),
    Agent(
        name="crush",
        title="Crush",
        package="npm:@charmland/crush",
        api="/v1/chat/completions",
        start=_crush,
        need=ContextNeed(0, 32_768),
        small_tasks=SmallTasks("web pages and titles", 32_768, needs_tools=True),
        source="https://github.com/charmbracelet/crush",
        editor="crush",
    ),
    Agent(
        name="goose",
        title="goose",
        how_to_install="see https://goose-docs.ai/docs/getting-started/installation",
        api="/v1/chat/completions",
        start=_goose,
        need=ContextNeed(0, 32_768),
        source="https://github.com/aaif-goose/goose",
        editor="goose",
        default_arguments=("session",),
    ),
    Agent(
        name="zed",
        title="Zed",
        other_commands=("zeditor",),
        how_to_install="see https://zed.dev/download",
        api="/api/chat",
        start=lambda _: Start(arguments=("--wait",), environment={"OLLAMA_API_KEY": KEY}),
        editor="zed",
        takes_settings=False,
        default_arguments=(".",),
    ),
)
