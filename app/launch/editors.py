"""The lines with which clients are pointed at the service for good: `localllm serve --editor NAME`.

Owns those of agents, which are made from what each needs; the texts of others are in `clients`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping

from app.launch.agents import (
    Target,
    TargetModel,
    agent_named,
    claude_code_variables,
    codex_settings,
    crush_settings,
    goose_variables,
    opencode_settings,
)
from app.launch.clients import ANY_KEY, CLIENTS, Client

_CLIENTS: Mapping[str, Client] = {client.name: client for client in CLIENTS}


def _aider(target: Target) -> str:
    return f"{_variables({'OLLAMA_API_BASE': target.url})} aider --model {shlex.quote(f'ollama_chat/{target.model}')}"


def _claude_code(target: Target) -> str:
    variables = {"ANTHROPIC_AUTH_TOKEN": ANY_KEY, **claude_code_variables(target)}
    return " \\\n  ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()) + " claude"


def _cline(target: Target) -> str:
    provider, model = "--provider openai-compatible", shlex.quote(target.model)
    return (
        f"cline auth {provider} --apikey {ANY_KEY} --modelid {model} --baseurl {target.url}/v1\n"
        f"cline {provider} --model {model}"
    )


def _codex(target: Target) -> str:
    lines = ["# in ~/.codex/config.toml"]
    table = ""
    settings = {**codex_settings(target), "model_providers.localllm.experimental_bearer_token": ANY_KEY}
    for name, value in settings.items():
        of_table, _, key = name.rpartition(".")
        if of_table != table:
            lines += ["", f"[{of_table}]"]
            table = of_table
        lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines)


def _crush(target: Target) -> str:
    settings = {"$schema": "https://charm.land/crush.json", **crush_settings(target, ANY_KEY)}
    return json.dumps(settings, indent=2)


def _goose(target: Target) -> str:
    named = {**goose_variables(target), "OPENAI_API_KEY": ANY_KEY}
    return "\n".join((*(f"export {name}={shlex.quote(value)}" for name, value in named.items()), "goose session"))


def _opencode(target: Target) -> str:
    settings = {"$schema": "https://opencode.ai/config.json", **opencode_settings(target, ANY_KEY)}
    return json.dumps(settings, indent=2)


def _qwen_code(target: Target) -> str:
    named = {"OPENAI_BASE_URL": f"{target.url}/v1", "OPENAI_API_KEY": ANY_KEY, "OPENAI_MODEL": target.model}
    return f"{_variables(named)} qwen --auth-type openai"


_AGENT_LINES: Mapping[str, Callable[[Target], str]] = {
    "aider": _aider,
    "claude-code": _claude_code,
    "cline-cli": _cline,
    "codex": _codex,
    "crush": _crush,
    "goose": _goose,
    "opencode": _opencode,
    "qwen-code": _qwen_code,
}

EDITORS = (*_CLIENTS, *_AGENT_LINES)


def editor_settings(editor: str, url: str, model: str, n_ctx: int = 0) -> str:
    """Return what points `editor`, one of EDITORS, at the service at `url` and its `model`; without a final newline. An
    agent learns of the context: `n_ctx`, or one that is long enough for it."""
    if lines := _AGENT_LINES.get(editor):
        agent = agent_named(editor)
        assert agent is not None, "every agent with lines is in the table"
        assert agent.need is not None, "an agent has a first prompt"
        return lines(Target(url, TargetModel(model, n_ctx or agent.need.n_ctx)))
    text = _CLIENTS[editor].lines
    for name, value in {"{url}": url, "{host}": url.partition("://")[2], "{model}": model}.items():
        text = text.replace(name, value)
    return text.rstrip("\n")


def context_advice(editor: str, n_ctx: int) -> str:
    """Return which context `editor` needs, "" for one that needs no long one; `n_ctx` is that of the settings."""
    agent = agent_named(editor) if editor in _AGENT_LINES else None  # Cline in VS Code is not its command
    needed = agent.need if agent is not None else None
    if needed is None:
        return ""
    free = f" and keeps {needed.n_free:,} free" if needed.n_free else ""
    first = f"about {needed.n_first:,} tokens" if needed.n_first else "a prompt that was not counted"
    brings = f"{editor} begins a session with {first}{free}"
    if not n_ctx:
        loads = "without it the model is loaded again with a longer context when they come, as far as memory allows"
        return f"{brings}: serve with --ctx {needed.n_ctx}; {loads}."
    if n_ctx <= needed.n_first + needed.n_free:
        return f"{brings}, more than --ctx {n_ctx} holds: serve with --ctx {needed.n_ctx}."
    return f"{brings}; --ctx {n_ctx} holds them." if n_ctx < needed.n_ctx else ""


def _variables(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
