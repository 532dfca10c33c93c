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
class Target:
    """The service as an agent sees it: its address, and a model with its context in tokens."""

    url: str
    model: str
    n_ctx: int

    @property
    def n_output(self) -> int:
        """The most tokens of an answer, so that a prompt of three quarters of the context still fits."""
        return min(_MOST_OUTPUT, self.n_ctx // 4)


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
    `n_free` are those of the context that the agent never fills: it summarizes before."""

    n_first: int
    n_ctx: int
    n_free: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A coding agent or an editor with one. `name` and `other_commands` are its names on PATH; `package` is what its
    registry calls it ("npm:" or "pypi:"), empty for others. `editor` is its name in `serve --editor`. One that
    `takes_settings` for a run is told of the service, any other has to be pointed there by hand. `default_arguments`
    follow where the user gives none."""

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
    """Return what points Claude Code at a service, without a key: every model that it may choose is the same one."""
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{kind}_MODEL" for kind in ("OPUS", "SONNET", "HAIKU")))
    return {
        "ANTHROPIC_BASE_URL": target.url,
        **dict.fromkeys((*models, "ANTHROPIC_SMALL_FAST_MODEL"), target.model),
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
        removed=("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
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
    settings = {**codex_settings(target), "model_providers.localllm.env_key": KEY_VARIABLE}
    flags = tuple(flag for name, value in settings.items() for flag in ("-c", f"{name}={_toml(value)}"))
    return Start(arguments=flags, environment={KEY_VARIABLE: KEY})


def opencode_settings(target: Target, api_key: str) -> dict[str, object]:
    name = f"localllm/{target.model}"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "localllm",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": api_key},
        "models": {target.model: {"limit": {"context": target.n_ctx, "output": target.n_output}}},
    }
    return {"provider": {"localllm": provider}, "model": name, "small_model": name}


def _opencode(target: Target, variable: str = "OPENCODE_CONFIG_CONTENT") -> Start:
    settings = opencode_settings(target, f"{{env:{KEY_VARIABLE}}}")
    return Start(environment={variable: json.dumps(settings), KEY_VARIABLE: KEY})


def _qwen_code(target: Target) -> Start:
    generation = {"contextWindowSize": target.n_ctx}
    return Start(
        arguments=("--auth-type", "openai", "--model", target.model),
        environment={
            "OPENAI_BASE_URL": f"{target.url}/v1",
            "OPENAI_API_KEY": KEY,
            "OPENAI_MODEL": target.model,
            "QWEN_CODE_SYSTEM_DEFAULTS_PATH": f"{FOLDER}/defaults.json",
        },
        files={"defaults.json": _json({"model": {"generationConfig": generation}})},
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
        "defaultCompletionOptions": {"contextLength": target.n_ctx, "maxTokens": target.n_output},
    }
    settings = {"name": "localllm", "version": "1.0.0", "schema": "v1", "models": [model]}
    return Start(
        arguments=("--config", f"{FOLDER}/config.yaml"),
        environment={KEY_VARIABLE: KEY},
        files={"config.yaml": _json(settings)},  # JSON is YAML too
    )


def _copilot(target: Target) -> Start:
    return Start(
        environment={
            "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_BASE_URL": f"{target.url}/v1",
            "COPILOT_PROVIDER_API_KEY": KEY,
            "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": str(target.n_ctx - target.n_output),
            "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": str(target.n_output),
            "COPILOT_MODEL": target.model,
            "COPILOT_OFFLINE": "true",
        },
        removed=("COPILOT_PROVIDER_BEARER_TOKEN", "COPILOT_PROVIDER_API_KEY_COMMAND", "COPILOT_PROVIDER_HEADERS"),
    )


def _pi(target: Target) -> Start:
    free = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0)
    model = {
        "id": target.model,
        "name": target.model,
        "reasoning": False,
        "input": ["text"],
        "cost": free,
        "contextWindow": target.n_ctx,
        "maxTokens": target.n_output,
    }
    provider = {"baseUrl": f"{target.url}/v1", "api": "openai-completions", "models": [model]}
    text = json.dumps(provider)[1:]
    extension = (
        f'export default (pi) => pi.registerProvider("localllm", {{"apiKey": process.env.{KEY_VARIABLE}, {text});\n'
    )
    return Start(
        arguments=("--extension", f"{FOLDER}/localllm.ts", "--provider", "localllm", "--model", target.model),
        environment={KEY_VARIABLE: KEY},
        files={"localllm.ts": extension},
    )


def _json(value: object) -> str:
    return f"{json.dumps(value, indent=2)}\n"


def _toml(value: str | int) -> str:
    """Return a value as `codex -c` reads it: bare where that is a text too, for a shim of Windows breaks quotes."""
    is_bare = isinstance(value, str) and _WORD.fullmatch(value) and value not in _OTHER_CONSTANTS
    return str(value) if is_bare else json.dumps(value)


# First prompts: what the tested version sends in one-shot mode, Claude Code in a terminal, where it has more tools.
AGENTS: tuple[Agent, ...] = (
    Agent(
        name="claude",
        title="Claude Code",
        package="npm:@anthropic-ai/claude-code",
        api="/v1/messages",
        start=_claude_code,
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
        start=lambda target: Start(
            arguments=("--model", f"ollama_chat/{target.model}"),
            environment={"OLLAMA_API_BASE": target.url, "OLLAMA_API_KEY": KEY},
        ),
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
        package="npm:@mariozechner/pi-coding-agent",
        api="/v1/chat/completions",
        start=_pi,
        need=ContextNeed(1_400, 16_384),
        tested="0.73.1",
    ),
    Agent(
        name="kilo",
        title="Kilo Code CLI",
        package="npm:@kilocode/cli",
        api="/v1/chat/completions",
        start=lambda target: _opencode(target, "KILO_CONFIG_CONTENT"),  # made from opencode
        need=ContextNeed(14_000, 32_768),
        tested="7.7.7",
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
