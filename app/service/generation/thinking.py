"""How much a model is asked to think before it answers, and how its chat template is told.

Owns the levels, and a table of the variables and words by which templates take them. Independent of dialects, which
have their own fields for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quantizer.errors import RequestError

__all__ = ["DEFAULT_THINKING", "LEVELS", "Thinking"]

LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_OFF = ("none", "no_think", "off")  # what templates call no thought
_RESERVED = frozenset({"messages", "tools", "template", "add_generation_prompt", "bos_token", "eos_token", "self"})
# Up to how many tokens a budget is of which level, where a template knows levels only.
_MOST_TOKENS = ((0, "none"), (2048, "low"), (8192, "medium"))
# The budgets of Seed-OSS, which was trained with these among others (source: its template and model card).
_BUDGETS = {"minimal": 512, "low": 512, "medium": 4096, "high": 16384}
_UNLIMITED = -1

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How much to think: whether at all, with which `effort` of LEVELS, in how many tokens. None and "" leave it open.

    `variables` go to the template as they are and count over the rest. What a client did not say but its dialect means
    `is_assumed`. Raises RequestError for an unknown effort, and for variables that are not the client's.
    """

    is_on: bool | None = None
    effort: str = ""
    n_tokens: int | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    is_assumed: bool = False

    def __post_init__(self) -> None:
        if self.effort and self.effort not in LEVELS:
            raise RequestError(f"The effort of thinking is {self.effort[:40]!r}.", f"Use one of {', '.join(LEVELS)}.")
        if taken := sorted(_RESERVED & self.variables.keys()):
            raise RequestError(
                f"chat_template_kwargs has {taken[0]!r}.", "Leave it out: the request's own fields say it."
            )

    @property
    def level(self) -> str:
        """One of LEVELS, "" where only on or off is known."""
        if self.effort or self.n_tokens is None or self.n_tokens < 0:
            return self.effort
        return next((level for most, level in _MOST_TOKENS if self.n_tokens <= most), "high")

    @property
    def is_wanted(self) -> bool | None:
        """Whether the model is to think, None where that is left open."""
        if self.is_on is None:
            return self.level != "none" if self.level else None
        return self.is_on and self.level != "none"

    def for_template(self, chat_template: str) -> dict[str, Any]:
        """Return the variables by which `chat_template` is told."""
        values: dict[str, Any] = {}
        if self.is_wanted is not None:
            names = [name for name in _VARIABLES if _is_variable(name, chat_template)]
            values = {name: _VARIABLES[name](self, name, chat_template) for name in names}
        return {**{name: value for name, value in values.items() if value is not None}, **self.variables}

    def is_unheeded(self, chat_template: str) -> bool:
        """Return whether no thought was asked for and `chat_template` has no way to turn it off."""
        if self.is_wanted is not False or self.is_assumed or _SWITCH_WORD.search(chat_template):
            return False
        values = self.for_template(chat_template)
        return not any(value in (False, 0, *_OFF, "minimal", "disabled") for value in values.values())

    def in_messages(self, messages: Sequence[Message], chat_template: str) -> list[Message]:
        """Return `messages` with the word by which templates without a variable are told, in the first of them."""
        says_nothing = self.is_wanted is None or _is_variable("enable_thinking", chat_template)
        if says_nothing or not _SWITCH_WORD.search(chat_template):
            return list(messages)
        first, *others = messages
        word = "/think" if self.is_wanted else "/no_think"
        return [{**first, "content": f"{first['content'] or ''} {word}".lstrip()}, *others]


DEFAULT_THINKING = Thinking()


def _switch(thinking: Thinking, _name: str, _template: str) -> bool:
    return bool(thinking.is_wanted)


def _mode(thinking: Thinking, _name: str, _template: str) -> str:
    return "enabled" if thinking.is_wanted else "disabled"


def _option(thinking: Thinking, _name: str, _template: str) -> str:
    return "on" if thinking.is_wanted else "off"


def _effort(thinking: Thinking, name: str, template: str) -> str | None:
    """Return the level as `template` calls it, the nearest one that it has; None for its default."""
    known = _known_levels(name, template)
    off = next((word for word in _OFF if word in known), None)
    if not thinking.is_wanted and off:
        return off
    level = thinking.level
    if not level or level == "none":
        if not thinking.is_wanted:
            level = "minimal"  # it cannot be turned off
        elif off and _has_list(name, template):
            level = "medium"  # off by default
        else:
            return None
    ranked = [word for word in LEVELS if word in known and word not in _OFF]
    return min(ranked, key=lambda word: (abs(_rank(word) - _rank(level)), -_rank(word)))


def _budget(thinking: Thinking, _name: str, _template: str) -> int | None:
    if not thinking.is_wanted:
        return 0
    return thinking.n_tokens or _BUDGETS.get(thinking.level, _UNLIMITED if thinking.level else None)


# By variable, what its value is made of (source: the templates in models/templates of llama.cpp @ the version vendored
# in llama-cpp-python 0.3.36, and of Mistral Small 4 and Granite 3.3 at their publishers).
_VARIABLES: Mapping[str, Callable[[Thinking, str, str], Any]] = {
    "enable_thinking": _switch,  # Qwen3, GLM 4.5, SmolLM3, Nemotron 3, Gemma 4, Apertus, Command R7B
    "thinking": _switch,  # DeepSeek V3.1 to V4, Granite 3.3, Kimi K3
    "thinking_mode": _mode,  # MiniMax M3
    "thinking_option": _option,  # Ling 3.0
    "reasoning_effort": _effort,  # GPT-OSS, Mistral Small 4, Hunyuan 3, DeepSeek V4, Command A+, Solar Open
    "thinking_effort": _effort,  # Kimi K3
    "reasoning_strength": _effort,  # Muse Glimmer
    "thinking_budget": _budget,  # Seed-OSS
}
_SWITCH_WORD = re.compile(r"""['"]/no_think['"] in\b""")  # Nemotron Nano 2


def _rank(level: str) -> int:
    return LEVELS.index(level)


def _is_variable(name: str, template: str) -> bool:
    """Return whether `template` reads the variable, and not only a field or a text of that name."""
    return re.search(rf"(?<![.\w'\"]){name}(?![\w'\"]|\s*=[^=])", template) is not None


def _listed(name: str, template: str) -> str:
    """Return the levels that a template names because it refuses others."""
    found = re.search(rf"(?<![.\w]){name} not in\s*[\[(]([^\])]*)", template)
    return found[1] if found else ""


def _has_list(name: str, template: str) -> bool:
    return bool(_listed(name, template))


def _known_levels(name: str, template: str) -> set[str]:
    """Return the words for a level that `template` takes."""
    if listed := _listed(name, template):
        return set(re.findall(r"['\"](\w+)['\"]", listed))
    named = {word for word in (*_OFF, *LEVELS) if re.search(rf"""['"]{word}['"]""", template)}
    return {"low", "medium", "high"} | named
