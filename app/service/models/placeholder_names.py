"""Names that say nothing about which local model is meant: those of hosted models, and placeholders of clients.

Clients send them because they have to send something, or because their default is a hosted model. Owns which names
these are. Pure: knows nothing of the models that are here.
"""

from __future__ import annotations

import re

# What routers and clients put before a model's name (source: the providers of LiteLLM and OpenRouter).
_PROVIDERS = re.compile(
    r"(?:anthropic|azure|custom_openai|default|deepseek|google|gemini|hosted_vllm|litellm_proxy|llamacpp|llama_cpp|lm_studio"
    r"|lmstudio|local|localllm|mistral|models|ollama|ollama_chat|openai|openai_like|openrouter|qwen|vllm|x-ai|xai)/"
)
# Hosted models, which nobody can have as a file (source: the providers' lists of models).
_HOSTED = re.compile(
    r"gpt-\d.*"  # not gpt-oss, gpt-j, gpt-neox
    r"|(?:chatgpt|codex|text-davinci|text-curie|text-babbage|text-ada|text-embedding|davinci|babbage|o\d)(?:-.*)?"
    r"|claude(?:-.*)?|(?:claude-)?(?:sonnet|opus|haiku)(?:\[1m\]|-[\d.-]+|-latest)?"
    r"|gemini-.*|grok-.*|sonar(?:-.*)?|deepseek-(?:chat|reasoner)|moonshot-v1-.*|voyage-.*"
    r"|qwen[\d.]*(?:-coder|-vl|-omni)?-(?:max|plus|turbo|flash|long)(?:-.*)?"
    r"|(?:mistral|ministral|codestral|devstral|magistral|pixtral|kimi)-(?:.+-)?latest|mistral-(?:tiny|small|medium|large|embed)"
)
# What a client offers before anybody has chosen: a word alone, or several as in local-model, llama-server, my-model.
_ALONE = re.compile(
    r"(?:ai|any|auto|current|custom|default|demo|dummy|empty|example|fake|foo|llamacpp|llamafile|llm|lm|lmstudio|loaded"
    r"|local|localhost|localllm|main|model|none|null|ollama|openai|placeholder|server|test|undefined|vllm|whatever)\d{0,2}"
)
_WORD = (
    r"(?:a|ai|any|api|assistant|auto|bot|chat|coder|compatible|completion|cpp|current|custom|default|demo|dummy|empty"
    r"|example|fake|here|llama|llm|lm|loaded|local|localllm|main|model|my|name|openai|placeholder|server|some|studio"
    r"|test|text|the|vision|whatever|your|\d{1,2})"
)
_WORDS = re.compile(rf"{_WORD}(?:[-_. ]{_WORD})+")
_SUFFIX = re.compile(r":(?:latest|free|thinking|nitro|online)$")
_MAX_CHARACTERS = 100


def is_placeholder(name: str) -> bool:
    """Return whether `name` is of a hosted model, or says as little as "default": no local model can be meant by it.

    A name that could be of a local model, `llama3.2`, `qwen3:8b`, `org/repo`, is none, and neither is one that people
    give to theirs, such as `mario`.
    """
    rest = _SUFFIX.sub("", name.strip().lower()[:_MAX_CHARACTERS])
    while provider := _PROVIDERS.match(rest):
        rest = rest[provider.end() :]
    return any(pattern.fullmatch(rest) for pattern in (_HOSTED, _ALONE, _WORDS))
