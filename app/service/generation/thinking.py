"""How much a model thinks before it answers: how its template is told, in how many tokens, and what ends a thought.

Owns the levels, and tables of what each family reads. `app.engine.loop.thought` cuts the reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from app.common.answer_text import ReasoningTags
from app.engine.request import ReasoningBudget
from app.protocol.chat import Message
from app.protocol.errors import RequestError
from app.service.generation.harmony import HARMONY_BOUNDS

LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_OFF = ("none", "no_think", "off")  # what templates call no thought
_RESERVED = frozenset({"messages", "tools", "template", "add_generation_prompt", "bos_token", "eos_token", "self"})
# Up to how many tokens a budget is of which level, where a template knows levels only.
_MOST_TOKENS = ((0, "none"), (2048, "low"), (8192, "medium"))
# How many tokens a level is, where a template knows none; above these there is no limit (source: Google's table of
# reasoning_effort for Gemini 2.5, in "OpenAI compatibility").
_TOKENS_BY_LEVEL = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
_MOST_BUDGET = 2**31 - 1
# The budgets of Seed-OSS, which was trained with these among others (source: its template and model card).
_BUDGETS = {"minimal": 512, "low": 512, "medium": 4096, "high": 16384}
_UNLIMITED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How much to think: whether at all, with which `effort` of LEVELS, in how many tokens. None and "" leave it open.

    `variables` go to the template as they are and count over the rest. What a client did not say but its dialect means
    `is_assumed`. A thought that exceeds its tokens ends with the `conclusion`; None is the model's own.

    Raises RequestError for an unknown effort, and for variables that are not the client's.
    """

    is_on: bool | None = None
    effort: str = ""
    n_tokens: int | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    is_assumed: bool = False
    conclusion: str | None = None

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
        controls = _controls(chat_template)
        thinking = self
        if self.is_wanted is None and not any(control.name in self.variables for control in controls):
            thinking = replace(self, is_on=served_thinking(chat_template))
        if thinking.is_wanted is not None:
            told = ((control.name, _VALUES[control.name](thinking, control)) for control in controls)
            values = {name: value for name, value in told if value is not None}
        return {**values, **self.variables}

    def n_most_tokens(self, chat_template: str) -> int | None:
        """Return at most how many tokens a model of `chat_template` may think, None for as many as it likes. An effort
        is a budget where the template knows no levels; what is assumed limits nothing."""
        if self.is_assumed or (self.is_wanted is not False and self.n_tokens is not None and self.n_tokens < 0):
            return None
        if self.is_wanted is False:
            return 0
        if self.n_tokens is not None:
            return min(self.n_tokens, _MOST_BUDGET)
        knows_levels = any(control.name in _WITH_LEVELS for control in _controls(chat_template))
        return None if knows_levels else _TOKENS_BY_LEVEL.get(self.level)

    def in_messages(self, messages: Sequence[Message], chat_template: str) -> list[Message]:
        """Return `messages` with the word by which templates without a variable are told, in the first of them."""
        if self.is_wanted is None or not _switches_by_word(chat_template):
            return list(messages)
        first, *others = messages
        word = "/think" if self.is_wanted else "/no_think"
        return [replace(first, content=f"{first.content} {word}".lstrip()), *others]


DEFAULT_THINKING = Thinking()


@dataclass(frozen=True, slots=True)
class _Control:
    """A variable of one template: its `levels`, and whether it refuses others."""

    name: str
    levels: tuple[str, ...]
    refuses_others: bool


def _switch(thinking: Thinking, _control: _Control) -> bool:
    return bool(thinking.is_wanted)


def _effort(thinking: Thinking, control: _Control) -> str | None:
    """Return the level as the template calls it, the nearest one that it has; None for its default."""
    off = next((word for word in _OFF if word in control.levels), None)
    if not thinking.is_wanted and off:
        return off
    level = thinking.level
    if level in ("", "none"):
        if not thinking.is_wanted:
            level = "minimal"  # it cannot be turned off
        elif off and control.refuses_others:
            level = "medium"  # off by default
        else:
            return None
    rank, wanted = LEVELS.index, LEVELS.index(level)
    ranked = [word for word in LEVELS if word in control.levels and word not in _OFF]
    return min(ranked, key=lambda word: (abs(rank(word) - wanted), -rank(word)))


def _budget(thinking: Thinking, _control: _Control) -> int | None:
    if not thinking.is_wanted:
        return 0
    return thinking.n_tokens or _BUDGETS.get(thinking.level, _UNLIMITED if thinking.level else None)


# By variable, what its value is made of (source: the templates in models/templates of llama.cpp @ the version vendored
# in llama-cpp-python 0.3.36, and of Mistral Small 4 and Granite 3.3 at their publishers).
_VALUES: Mapping[str, Callable[[Thinking, _Control], Any]] = {
    "enable_thinking": _switch,  # Qwen3, GLM 4.5, SmolLM3, Nemotron 3, Gemma 4, Apertus, Command R7B
    "thinking": _switch,  # DeepSeek V3.1 to V4, Granite 3.3, Kimi K3
    "thinking_mode": lambda thinking, _: "enabled" if thinking.is_wanted else "disabled",  # MiniMax M3
    "thinking_option": lambda thinking, _: "on" if thinking.is_wanted else "off",  # Ling 3.0
    "reasoning_effort": _effort,  # GPT-OSS, Mistral Small 4, Hunyuan 3, DeepSeek V4, Command A+, Solar Open
    "thinking_effort": _effort,  # Kimi K3
    "reasoning_strength": _effort,  # Muse Glimmer
    "thinking_budget": _budget,  # Seed-OSS
}
# By a mark of the template, whether the model's makers serve it thinking where a request does not say it, and their
# template, which is not told, does otherwise. All others are as their template is: Qwen3, GLM, Nemotron 3, SmolLM3,
# Laguna S think, Gemma 4 ("disabled by default", Google's page on its prompt format), DeepSeek V3.1 and V3.2
# (deepseek-chat), Command R7B, Granite 3.3, Bielik 3, Laguna XS and Reka Edge do not, MiniCPM 5 and RWKV decide
# themselves. llama-server tells all of them to think.
_SERVED: tuple[tuple[re.Pattern[str], bool], ...] = (
    # DeepSeek V4: "Thinking mode is enabled by default" (DeepSeek's API docs, Thinking Mode).
    (re.compile(r"drop_thinking(?s:.)*DSML|DSML(?s:.)*drop_thinking"), True),
    # Models that always think: makers' own templates open a thought (Qwen/QwQ-32B, deepseek-ai/DeepSeek-R1-Distill-…);
    # llama.cpp's, which are in many files, close it again.
    (re.compile(r"<think>\\n'\s*\}\}\s*\{%-? if not enable_thinking -?%\}"), True),
)
_WITH_LEVELS = ("reasoning_effort", "thinking_effort", "reasoning_strength", "thinking_budget")
_BLOCK = re.compile(r"\{[#%{]")
_BLOCK_ENDS = {"{#": "#}", "{%": "%}", "{{": "}}"}
_TEXT = re.compile(r"""'[^'\\]*+(?:\\.[^'\\]*+)*+'|"[^"\\]*+(?:\\.[^"\\]*+)*+\"""", re.DOTALL)
_SWITCH_WORD = re.compile(r"""['"]/no_think['"] in\b""")  # Nemotron Nano 2


def reads_tools(template: str) -> bool:
    """Return whether a chat template looks at the tools of a request at all."""
    return _is_variable("tools", _code(template))


def can_be_told(template: str) -> bool:
    """Return whether a chat template can be told how much to think."""
    return bool(_controls(template)) or _switches_by_word(template)


@lru_cache(maxsize=32)
def _controls(template: str) -> tuple[_Control, ...]:
    code = _code(template)
    return tuple(_control(name, template) for name in _VALUES if _is_variable(name, code))


@lru_cache(maxsize=32)
def served_thinking(template: str) -> bool | None:
    """Return whether a model of `template` is to think where a request does not say it, None as the template has it."""
    return next((thinks for mark, thinks in _SERVED if mark.search(template)), None)


@lru_cache(maxsize=32)
def _switches_by_word(template: str) -> bool:
    return _SWITCH_WORD.search(template) is not None and not _is_variable("enable_thinking", _code(template))


def _code(template: str) -> str:
    """Return the expressions and statements of a template, without the texts in them."""
    pieces, begin = [], 0
    while found := _BLOCK.search(template, begin):
        end = template.find(_BLOCK_ENDS[found[0]], found.end())
        if end < 0:
            break
        pieces.append("" if found[0] == "{#" else _TEXT.sub("_", template[found.end() : end]))
        begin = end + 2
    return "\n".join(pieces)


def _is_variable(name: str, code: str) -> bool:
    """Return whether `code` reads the variable, and not only a field of that name."""
    return re.search(rf"{name}(?<![.\w]{name})(?!\w|\s*=[^=])", code) is not None


def _control(name: str, template: str) -> _Control:
    if listed := re.search(rf"\b{name} not in\s*[\[(]([^\])]*)", template):
        return _Control(name, tuple(re.findall(r"['\"](\w+)['\"]", listed[1])), refuses_others=True)
    named = (word for word in (*_OFF, *LEVELS) if f"'{word}'" in template or f'"{word}"' in template)
    return _Control(name, ("low", "medium", "high", *named), refuses_others=False)


# What Qwen's models are given (source: "Thinking budget" in Qwen's documentation, and arXiv 2505.09388, 4.6).
_QWEN_CONCLUSION = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now."
)
_QWEN_MARKS = ("<|im_start|>", "<think>")


def reasoning_budget(
    tags: ReasoningTags, chat_template: str, thinking: Thinking, *, may_call: bool = False
) -> ReasoningBudget | None:
    """Return the budget of an answer with `tags`, None for a model that does not reason, or no more. One that
    `may_call` tools chooses itself between a call and text, once."""
    if not tags.opening or tags.is_past:
        return None
    conclusion = thinking.conclusion
    if conclusion is None:
        conclusion = _QWEN_CONCLUSION if all(mark in chat_template for mark in _QWEN_MARKS) else ""
    to_text = tags.closing + tags.before_text
    ending = tags.closing if may_call else to_text
    if f"\\n{ending}" in chat_template or f"\n{ending}" in chat_template:
        ending = f"\n{ending}"  # behind a line end, where the template writes one before it
    return ReasoningBudget(
        opening=tags.opening.removeprefix(tags.begun).lstrip(),  # of the answer's first message
        closings=HARMONY_BOUNDS if tags.has_channels else (tags.closing, *tags.stops),
        ending=ending,
        last_ending=to_text if tags.before_text else "",
        conclusion=conclusion,
        is_open=tags.is_open,
        recurs=tags.recurs or tags.has_channels,
        max_tokens=thinking.n_most_tokens(chat_template),
    )
