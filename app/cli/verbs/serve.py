"""`localllm serve`: the service in the foreground, or as a child that ends with its owner; settings of editors."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial

import click

from app.cli.confirm import confirm_load, with_unfit_policy
from app.cli.options import options, setting_options
from app.cli.output.format import print_json
from app.settings.parsing import is_loopback
from app.settings.settings import load_settings
from app.terminal import printable
from quantizer.errors import UserError

__all__ = ["EDITORS", "editor_settings", "serve"]

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
ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN=localllm ANTHROPIC_MODEL={model} ANTHROPIC_SMALL_FAST_MODEL={model} claude
""",
    "codex": """\
# in ~/.codex/config.toml
model = "{model}"
model_provider = "localllm"

[model_providers.localllm]
name = "localllm"
base_url = "{url}/v1"
wire_api = "responses"
""",
    "gptel": """\
;; in Emacs' init file
(gptel-make-openai "localllm" :protocol "http" :host "{host}" :endpoint "/v1/chat/completions"
  :stream t :models '({model}))
""",
}

EDITORS = tuple(_LINES)


def editor_settings(editor: str, url: str, model: str) -> str:
    """Return what points `editor`, one of EDITORS, at the service at `url` and its `model`; without a final newline."""
    text = _LINES[editor]
    for name, value in (("{url}", url), ("{host}", url.partition("://")[2]), ("{model}", model)):
        text = text.replace(name, value)
    return text.rstrip("\n")


@click.command(epilog="Example: localllm serve -m model.gguf --ctx 16384")
@click.option("--editor", type=click.Choice(EDITORS), help="Print the settings for an editor or program, and exit.")
@setting_options("host", "port", "also", "model", "ctx", "kv_type", "draft", "lora", "control_vector", "context_shift")
@setting_options("rpc", "gpu", "threads", "parallel", "api_key", "access_log")
@options("assume_yes")
@click.option("--owned", is_flag=True, hidden=True, help="End with stdin; print the address as JSON.")
def serve(owned: bool, assume_yes: bool, editor: str | None, **flags: object) -> None:
    """Serve editors and programs on this machine, on http://127.0.0.1:11500.

    Compatible with the APIs of OpenAI, Anthropic, Ollama, llama.cpp and LM Studio.
    """
    settings = load_settings(flags)
    if editor:
        click.echo(editor_settings(editor, settings.url, settings.model))
        return
    settings = with_unfit_policy(settings, assume_yes=assume_yes, may_ask=not owned)
    from app.service.http.errors import openai_error
    from app.service.server import OperatorPrompt
    from app.service.server import serve as run_service

    if not owned:
        needs_stored_key = not (settings.api_key or is_loopback(settings.host))
        run_service(settings, partial(_announce, needs_stored_key), OperatorPrompt(_tell, confirm_load))
        return
    try:
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
