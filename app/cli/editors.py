"""The few lines with which editors and programs are pointed at the service.

Owns those lines, by client. Independent of the service.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["EDITORS", "editor_settings"]

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
    values = {"{url}": url, "{host}": url.partition("://")[2], "{model}": model}
    text = _LINES[editor]
    for name, value in values.items():
        text = text.replace(name, value)
    return text.rstrip("\n")
