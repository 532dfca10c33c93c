"""`localllm serve`: the service in the foreground, or as a child that ends with its owner; settings of editors."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import click

from app.cli.confirm import confirm_load, with_unfit_policy
from app.cli.options import options, setting_options
from app.cli.output.format import print_json
from app.settings.parsing import is_loopback
from app.settings.settings import load_settings
from app.terminal import printable
from quantizer.errors import UserError
from quantizer.memory_limit import ProcessBytes, check_memory_limit, reported_shortage

__all__ = ["EDITORS", "context_advice", "editor_settings", "serve"]

# The lines with which editors and programs are pointed at the service.
_LINES: Mapping[str, str] = {
    "llama.vim": """\
" in .vimrc; for a model that fills in the middle
let g:llama_config = {'endpoint_fim': '{url}/infill', 'endpoint_inst': '{url}/v1/chat/completions'}
""",
    "continue": """\
# in ~/.continue/config.yaml, under models:
  - name: localllm
    provider: ollama
    model: {model}
    apiBase: {url}
    roles: [chat, edit, apply, autocomplete, embed]
""",
    "zed": """\
// in settings.json
"language_models": {"ollama": {"api_url": "{url}"}}
""",
    "codecompanion": """\
-- in the setup of codecompanion.nvim
adapters = {
  http = {
    localllm = function()
      return require("codecompanion.adapters").extend("ollama", {
        env = { url = "{url}" },
        schema = { model = { default = "{model}" } },
      })
    end,
  },
},
""",
    "cline": """\
API Provider: Ollama
Base URL:     {url}
Model:        {model}
""",
    "aider": """\
OLLAMA_API_BASE={url} aider --model ollama_chat/{model}
""",
    "claude-code": """\
ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN=localllm ANTHROPIC_MODEL={model} ANTHROPIC_SMALL_FAST_MODEL={model} \\
  CLAUDE_CODE_AUTO_COMPACT_WINDOW={ctx} claude
""",
    "codex": """\
# in ~/.codex/config.toml
model = "{model}"
model_provider = "localllm"
model_context_window = {ctx}

[model_providers.localllm]
name = "localllm"
base_url = "{url}/v1"
wire_api = "responses"
""",
    "opencode": """\
{
  "$schema": "https://opencode.ai/config.json",
  "provider": {
    "localllm": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "{url}/v1", "apiKey": "localllm"},
      "models": {"{model}": {"limit": {"context": {ctx}, "output": 8192}}}
    }
  },
  "model": "localllm/{model}"
}
""",
    "qwen-code": """\
OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=localllm OPENAI_MODEL={model} qwen --auth-type openai
""",
    "gptel": """\
;; in Emacs' init file
(gptel-make-openai "localllm" :protocol "http" :host "{host}" :endpoint "/v1/chat/completions"
  :stream t :models '({model}))
""",
}

EDITORS = tuple(_LINES)


@dataclass(frozen=True, slots=True)
class _Appetite:
    """The tokens with which a session of an agent begins, and the context in which it can go on."""

    n_first: int
    n_ctx: int


# Counted with Qwen's tokenizer: Claude Code 2.1 in a terminal, Codex 0.169, opencode 1.18, Qwen Code 0.24.
_APPETITES: Mapping[str, _Appetite] = {
    "claude-code": _Appetite(35_000, 65_536),
    "codex": _Appetite(8_500, 32_768),
    "opencode": _Appetite(7_500, 32_768),
    "qwen-code": _Appetite(17_000, 32_768),
}


def editor_settings(editor: str, url: str, model: str, n_ctx: int = 0) -> str:
    """Return what points `editor`, one of EDITORS, at the service at `url` and its `model`; without a final newline.

    An agent learns of the context: `n_ctx`, or one that is long enough for it.
    """
    text = _LINES[editor]
    n_ctx = n_ctx or (_APPETITES[editor].n_ctx if editor in _APPETITES else 0)
    values = {"{url}": url, "{host}": url.partition("://")[2], "{model}": model, "{ctx}": str(n_ctx)}
    for name, value in values.items():
        text = text.replace(name, value)
    return text.rstrip("\n")


def context_advice(editor: str, n_ctx: int) -> str:
    """Return which context `editor` needs, "" for one that needs no long one; `n_ctx` is that of the settings."""
    if editor not in _APPETITES:
        return ""
    needed = _APPETITES[editor]
    brings = f"{editor} begins a session with about {needed.n_first:,} tokens"
    if not n_ctx:
        loads = "without it the model is loaded again with a longer context when they come, as far as memory allows"
        return f"{brings}: serve with --ctx {needed.n_ctx}; {loads}."
    if n_ctx <= needed.n_first:
        return f"{brings}, more than --ctx {n_ctx} holds: serve with --ctx {needed.n_ctx}."
    return f"{brings}; --ctx {n_ctx} holds them." if n_ctx < needed.n_ctx else ""


@click.command(epilog="Example: localllm serve -m model.gguf --ctx 16384")
@click.option("--editor", type=click.Choice(EDITORS), help="Print the settings for an editor or program, and exit.")
@setting_options("host", "port", "also", "model", "ctx", "kv_type", "projector", "draft", "lora", "control_vector")
@setting_options("context_shift", "rpc", "gpu", "threads", "parallel", "api_key", "access_log")
@options("assume_yes")
@click.option("--owned", is_flag=True, hidden=True, help="End with stdin; print the address as JSON.")
def serve(owned: bool, assume_yes: bool, editor: str | None, **flags: object) -> None:
    """Serve editors and programs on this machine, on http://127.0.0.1:11500.

    Compatible with the APIs of OpenAI, Anthropic, Ollama, llama.cpp and LM Studio.
    """
    settings = load_settings(flags)
    if editor:
        click.echo(editor_settings(editor, settings.url, settings.model, settings.ctx))
        if advice := context_advice(editor, settings.ctx):
            click.echo(advice, err=True)
        return
    settings = with_unfit_policy(settings, assume_yes=assume_yes, may_ask=not owned)
    if not owned:  # an owner has checked it
        check_memory_limit("service", ProcessBytes.SERVICE)
    from app.service.http.errors import openai_error
    from app.service.server import OperatorPrompt
    from app.service.server import serve as run_service

    if not owned:
        needs_stored_key = not (settings.api_key or is_loopback(settings.host))
        run_service(settings, partial(_announce, needs_stored_key), OperatorPrompt(_tell, confirm_load))
        return
    try:
        with reported_shortage("service"):
            run_service(settings, _announce_to_owner)
    except UserError as error:
        print_json(openai_error(error, hide_paths=False))
        sys.exit(error.exit_status)


def _announce(needs_stored_key: bool, url: str, model_id: str, ports: tuple[int, ...]) -> None:
    also = f" and on {', '.join(map(str, ports))}" if ports else ""
    click.echo(f"localllm serves {model_id} on {url}{also} (OpenAI API: {url}/v1). Press Ctrl-C to stop.")
    if needs_stored_key:
        click.echo("Clients have to send a key: `localllm key` prints it.")


def _tell(notice: str) -> None:
    click.echo(printable(notice), err=True)


def _announce_to_owner(url: str, model_id: str, ports: tuple[int, ...]) -> None:
    try:
        print_json({"url": url, "model": model_id, "also": ports})
    except OSError:  # an owner that is gone by now is noticed by the end of stdin
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python can flush it at exit
