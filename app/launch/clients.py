"""Clients of the service that are no agents of `agents`: the lines that set up each, and where these were tried.

Owns the table. In lines {url}, {host} and {model} are filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ANY_KEY = "localllm"  # for programs that insist on one


class Group(StrEnum):
    AGENT = "Coding agents"
    EDITOR = "Editors"
    APP = "Apps"
    LIBRARY = "Libraries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A program, by its `name` in `serve --editor`. `language` is that of its `lines`. `tested` is the version that
    tests/clients runs with them; any other has its lines from `source`, its documentation."""

    name: str
    title: str
    group: Group
    lines: str
    language: str = ""
    tested: str = ""
    source: str = ""


CLIENTS: tuple[Client, ...] = (
    Client(
        name="vibe",
        title="Mistral Vibe",
        group=Group.AGENT,
        language="toml",
        tested="3.0.3",
        lines="""\
# in ~/.vibe/config.toml; and LOCALLLM_KEY=localllm in ~/.vibe/.env
active_model = "{model}"

[[providers]]
name = "localllm"
api_base = "{url}/v1"
api_key_env_var = "LOCALLLM_KEY"
api_style = "openai"
backend = "generic"

[[models]]
name = "{model}"
provider = "localllm"
alias = "{model}"
""",
    ),
    Client(
        name="openhands",
        title="OpenHands CLI",
        group=Group.AGENT,
        language="sh",
        tested="1.16.0",
        lines="""\
export LLM_BASE_URL={url}/v1 LLM_API_KEY=localllm LLM_MODEL=openai/{model}
openhands --override-with-envs
""",
    ),
    Client(
        name="llama.vim",
        title="llama.vim",
        group=Group.EDITOR,
        language="vim",
        source="https://github.com/ggml-org/llama.vim",
        lines="""\
" in .vimrc; for a model that fills in the middle
let g:llama_config = {'endpoint_fim': '{url}/infill', 'endpoint_inst': '{url}/v1/chat/completions'}
""",
    ),
    Client(
        name="llama.vscode",
        title="llama.vscode",
        group=Group.EDITOR,
        language="json",
        source="https://github.com/ggml-org/llama.vscode",
        lines="""\
// in VS Code's settings.json; completions need a model that fills in the middle
"llama-vscode.endpoint": "{url}",
"llama-vscode.endpoint_chat": "{url}",
"llama-vscode.endpoint_tools": "{url}"
""",
    ),
    Client(
        name="continue",
        title="Continue",
        group=Group.EDITOR,
        language="yaml",
        source="https://docs.continue.dev/customize/model-providers/top-level/ollama",
        lines="""\
# in ~/.continue/config.yaml, under models:
  - name: localllm
    provider: ollama
    model: {model}
    apiBase: {url}
    roles: [chat, edit, apply, autocomplete, embed]
""",
    ),
    Client(
        name="zed",
        title="Zed",
        group=Group.EDITOR,
        language="json",
        source="https://zed.dev/docs/ai/llm-providers",
        lines="""\
// in settings.json
"language_models": {"ollama": {"api_url": "{url}"}}
""",
    ),
    Client(
        name="codecompanion",
        title="codecompanion.nvim",
        group=Group.EDITOR,
        language="lua",
        source="https://codecompanion.olimorris.dev/configuration/adapters",
        lines="""\
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
    ),
    Client(
        name="avante",
        title="avante.nvim",
        group=Group.EDITOR,
        language="lua",
        source="https://github.com/yetone/avante.nvim",
        lines="""\
-- in the setup of avante.nvim
provider = "ollama",
providers = {
  ollama = {
    endpoint = "{url}",
    model = "{model}",
    is_env_set = require("avante.providers.ollama").check_endpoint_alive,
  },
},
""",
    ),
    Client(
        name="minuet",
        title="minuet-ai.nvim",
        group=Group.EDITOR,
        language="lua",
        source="https://github.com/milanglacier/minuet-ai.nvim",
        lines="""\
-- in the setup of minuet-ai.nvim; for a model that fills in the middle
provider = "openai_fim_compatible",
provider_options = {
  openai_fim_compatible = {
    api_key = "TERM", -- any variable that is set
    name = "localllm",
    end_point = "{url}/v1/completions",
    model = "{model}",
  },
},
""",
    ),
    Client(
        name="cline",
        title="Cline in VS Code",
        group=Group.EDITOR,
        source="https://docs.cline.bot/getting-started/authorizing-with-cline",
        lines="""\
API Provider: Ollama
Base URL:     {url}
Model:        {model}
""",
    ),
    Client(
        name="copilot-vscode",
        title="GitHub Copilot in VS Code",
        group=Group.EDITOR,
        language="json",
        source="https://code.visualstudio.com/docs/agent-customization/language-models",
        lines="""\
// "Chat: Manage Language Models", Add, Custom Endpoint; then in chatLanguageModels.json:
[{
  "name": "localllm", "vendor": "customendpoint", "apiKey": "localllm", "apiType": "chat-completions",
  "models": [{
    "id": "{model}", "name": "{model}", "url": "{url}/v1/chat/completions",
    "toolCalling": true, "vision": false, "maxInputTokens": 24576, "maxOutputTokens": 8192
  }]
}]
""",
    ),
    Client(
        name="jetbrains",
        title="JetBrains AI Assistant",
        group=Group.EDITOR,
        source="https://www.jetbrains.com/help/ai-assistant/use-custom-models.html",
        lines="""\
Settings | Tools | AI Assistant | Providers & API keys | Third-party AI providers
Provider: OpenAI-compatible
URL:      {url}/v1
API Key:  localllm
""",
    ),
    Client(
        name="gptel",
        title="gptel",
        group=Group.EDITOR,
        language="elisp",
        source="https://github.com/karthink/gptel",
        lines="""\
;; in Emacs' init file
(gptel-make-openai "localllm" :protocol "http" :host "{host}" :endpoint "/v1/chat/completions"
  :stream t :models '({model}))
""",
    ),
    Client(
        name="open-webui",
        title="Open WebUI",
        group=Group.APP,
        source="https://docs.openwebui.com/getting-started/quick-start/connect-a-provider/starting-with-openai/",
        lines="""\
Admin Settings | Connections | OpenAI | Add New Connection
URL:     {url}/v1
API Key: localllm
""",
    ),
    Client(
        name="librechat",
        title="LibreChat",
        group=Group.APP,
        language="yaml",
        source="https://www.librechat.ai/docs/quick_start/custom_endpoints",
        lines="""\
# in librechat.yaml, under endpoints:
  custom:
    - name: localllm
      apiKey: localllm
      baseURL: {url}/v1
      models: {default: ["{model}"], fetch: true}
""",
    ),
    Client(
        name="cherry-studio",
        title="Cherry Studio",
        group=Group.APP,
        source="https://github.com/CherryHQ/cherry-studio",
        lines="""\
Settings | Model Service | Add, of the type OpenAI
API Address: {url}
API Key:     localllm
""",
    ),
    Client(
        name="page-assist",
        title="Page Assist",
        group=Group.APP,
        source="https://github.com/n4ze3m/page-assist",
        lines="""\
Settings | Ollama | Ollama URL: {url}
It is an extension of the browser: serve with --origins chrome-extension://
""",
    ),
    Client(
        name="openai",
        title="OpenAI's SDK for Python",
        group=Group.LIBRARY,
        language="python",
        tested="3.57.0",
        lines="""\
from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="localllm")
print(client.responses.create(model="{model}", input="Hello").output_text)
""",
    ),
    Client(
        name="openai-js",
        title="OpenAI's SDK for JavaScript",
        group=Group.LIBRARY,
        language="js",
        tested="7.59.0",
        lines="""\
import OpenAI from "openai";
const client = new OpenAI({ baseURL: "{url}/v1", apiKey: "localllm" });
console.log((await client.responses.create({ model: "{model}", input: "Hello" })).output_text);
""",
    ),
    Client(
        name="anthropic",
        title="Anthropic's SDK for Python",
        group=Group.LIBRARY,
        language="python",
        tested="2.14.0",
        lines="""\
from anthropic import Anthropic

client = Anthropic(base_url="{url}", api_key="localllm")
asked = [{"role": "user", "content": "Hello"}]
print(client.messages.create(model="{model}", max_tokens=500, messages=asked).content[0].text)
""",
    ),
    Client(
        name="anthropic-js",
        title="Anthropic's SDK for JavaScript",
        group=Group.LIBRARY,
        language="js",
        tested="1.14.0",
        lines="""\
import Anthropic from "@anthropic-ai/sdk";
const client = new Anthropic({ baseURL: "{url}", apiKey: "localllm" });
const messages = [{ role: "user", content: "Hello" }];
console.log((await client.messages.create({ model: "{model}", max_tokens: 500, messages })).content[0].text);
""",
    ),
    Client(
        name="ollama",
        title="Ollama's library for Python",
        group=Group.LIBRARY,
        language="python",
        tested="0.6.3",
        lines="""\
from ollama import Client

asked = [{"role": "user", "content": "Hello"}]
print(Client(host="{url}").chat(model="{model}", messages=asked).message.content)
""",
    ),
    Client(
        name="ollama-js",
        title="Ollama's library for JavaScript",
        group=Group.LIBRARY,
        language="js",
        tested="0.6.4",
        lines="""\
import { Ollama } from "ollama";
const messages = [{ role: "user", content: "Hello" }];
console.log((await new Ollama({ host: "{url}" }).chat({ model: "{model}", messages })).message.content);
""",
    ),
    Client(
        name="lmstudio",
        title="LM Studio's SDK for Python",
        group=Group.LIBRARY,
        language="python",
        tested="1.5.0",
        lines="""\
import lmstudio

client = lmstudio.Client("{host}")
print(client.llm.model("{model}").respond("Hello").content)
""",
    ),
    Client(
        name="langchain",
        title="LangChain",
        group=Group.LIBRARY,
        language="python",
        tested="1.7.3",
        lines="""\
from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url="{url}/v1", api_key="localllm", model="{model}")
print(model.invoke("Hello").content)
""",
    ),
    Client(
        name="litellm",
        title="LiteLLM",
        group=Group.LIBRARY,
        language="python",
        tested="1.106.2",
        lines="""\
import litellm

asked = [{"role": "user", "content": "Hello"}]
answer = litellm.completion("ollama_chat/{model}", api_base="{url}", messages=asked)
print(answer.choices[0].message.content)
""",
    ),
    Client(
        name="llm",
        title="llm",
        group=Group.LIBRARY,
        language="yaml",
        tested="0.36",
        lines="""\
# in extra-openai-models.yaml beside `llm logs path`; then: llm -m localllm "Hello"
- model_id: localllm
  model_name: {model}
  api_base: {url}/v1
""",
    ),
    Client(
        name="instructor",
        title="instructor",
        group=Group.LIBRARY,
        language="python",
        tested="1.17.0",
        lines="""\
import instructor, openai, pydantic


class Answer(pydantic.BaseModel):
    is_good: bool


service = openai.OpenAI(base_url="{url}/v1", api_key="localllm")
client = instructor.from_openai(service, mode=instructor.Mode.JSON_SCHEMA)
asked = [{"role": "user", "content": "Is snow good?"}]
print(client.chat.completions.create(model="{model}", response_model=Answer, messages=asked))
""",
    ),
    Client(
        name="openai-agents",
        title="OpenAI's Agents SDK",
        group=Group.LIBRARY,
        language="python",
        tested="0.24.0",
        lines="""\
from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)  # traces go to OpenAI
model = OpenAIResponsesModel("{model}", AsyncOpenAI(base_url="{url}/v1", api_key="localllm"))
print(Runner.run_sync(Agent(name="assistant", model=model), "Hello").final_output)
""",
    ),
    Client(
        name="pydantic-ai",
        title="Pydantic AI",
        group=Group.LIBRARY,
        language="python",
        tested="2.68.0",
        lines="""\
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

service = OpenAIProvider(base_url="{url}/v1", api_key="localllm")
model = OpenAIChatModel("{model}", provider=service)
print(Agent(model).run_sync("Hello").output)
""",
    ),
    Client(
        name="ai-sdk",
        title="Vercel's AI SDK",
        group=Group.LIBRARY,
        language="js",
        tested="7.0.173",
        lines="""\
import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";
const model = createOpenAI({ baseURL: "{url}/v1", apiKey: "localllm" }).responses("{model}");
console.log((await generateText({ model, prompt: "Hello" })).text);
""",
    ),
)
