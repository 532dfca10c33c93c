"""The fields by which clients say how much to think, and earlier reasoning in a message; shared by dialects.

Owns names and forms of the fields. `app.service.generation.thinking` knows how a template is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import StrictBool, StrictStr

from app.service.api.fields import Body
from app.service.generation.thinking import Thinking

Value = TypeVar("Value")

_DEFAULTS = ("", "auto", "default")  # words for the model's own effort (LiteLLM's and Groq's)
_SWITCHES: Mapping[str, bool | None] = {
    "enabled": True,
    "adaptive": True,
    "on": True,
    "disabled": False,
    "off": False,
    **dict.fromkeys(_DEFAULTS),
}


class ThinkingOptions(Body):
    """How much to think: `thinking` of Anthropic, DeepSeek, Z.ai and Moonshot, and `reasoning` of OpenRouter."""

    type: StrictStr | None = None
    budget_tokens: int | None = None
    effort: StrictStr | None = None
    max_tokens: int | None = None
    enabled: StrictBool | None = None

    @property
    def is_on(self) -> bool | None:
        return self.enabled if self.type is None else _SWITCHES.get(self.type)


class TemplateVariablesBody(Body):
    """Variables for the chat template, under the name that llama-server, vLLM and SGLang have for them."""

    chat_template_kwargs: dict[str, Any] | None = None


class ChatThinkingBody(TemplateVariablesBody):
    """The fields for thinking that clients of /v1/chat/completions send."""

    reasoning_effort: StrictStr | None = None  # OpenAI
    reasoning: ThinkingOptions | StrictBool | StrictStr | None = None  # OpenRouter
    thinking: ThinkingOptions | StrictBool | StrictStr | None = None  # DeepSeek, Z.ai, Moonshot
    enable_thinking: StrictBool | None = None  # Alibaba, SiliconFlow
    thinking_budget: int | None = None  # Alibaba
    thinking_budget_tokens: int | None = None  # llama-server
    reasoning_budget_tokens: int | None = None  # llama-server
    reasoning_budget_message: StrictStr | None = None  # llama-server
    reasoning_control: StrictBool | None = None  # llama-server; any reasoning can be ended here
    thinking_token_budget: int | None = None  # vLLM

    def how_to_think(self) -> Thinking:
        """Return what the fields say; the first of several counts. Raises RequestError for an unknown effort."""
        thinking, reasoning = _options(self.thinking), _options(self.reasoning)
        budgets = (self.thinking_budget, self.reasoning_budget_tokens, self.thinking_budget_tokens)
        asked = asked_thinking(
            self.reasoning_effort or thinking.effort or reasoning.effort,
            _first(thinking.is_on, self.enable_thinking, reasoning.is_on),
            _first(thinking.budget_tokens, *budgets, self.thinking_token_budget, reasoning.max_tokens),
            self.chat_template_kwargs,
        )
        return replace(asked, conclusion=self.reasoning_budget_message)


def _options(value: ThinkingOptions | bool | str | None) -> ThinkingOptions:
    """Return what one word says as options: a switch, or an effort."""
    if isinstance(value, ThinkingOptions):
        return value
    if isinstance(value, str):
        return ThinkingOptions(type=value) if value in _SWITCHES else ThinkingOptions(effort=value)
    return ThinkingOptions(enabled=value)


def asked_thinking(
    effort: str | None = None,
    is_on: bool | None = None,
    n_tokens: int | None = None,
    variables: dict[str, Any] | None = None,
) -> Thinking:
    """Return how much to think. Raises RequestError as Thinking does."""
    known = "" if effort is None or effort in _DEFAULTS else effort
    return Thinking(is_on=is_on, effort=known, n_tokens=n_tokens, variables=variables or {})


def _first(*values: Value | None) -> Value | None:
    return next((value for value in values if value is not None), None)


def joined_reasoning(thoughts: Iterable[object]) -> str:
    """Return the texts of `thoughts`, each a text or a list of parts with one, in paragraphs."""
    return "\n\n".join(filter(None, (_text_of(thought) for thought in thoughts)))


def _text_of(thought: object) -> str:
    if isinstance(thought, list):
        return "".join(str(part.get("text") or "") for part in thought if isinstance(part, dict))
    return thought if isinstance(thought, str) else ""
