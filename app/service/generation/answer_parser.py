"""The parts of one answer as it streams: reasoning, text and tool calls, however the model writes them.

Owns which parser reads the answers of which model. Independent of dialects and of the engine.
"""

from __future__ import annotations

import re
from typing import Protocol

from app.common.answer_text import ReasoningParser, ReasoningTags
from app.protocol.chat import AnswerDelta, ToolCallDelta, with_deltas
from app.service.generation.harmony import HarmonyParser
from app.service.tools.parser import ToolCalling, ToolCallParser
from app.service.tools.tool import NO_TOOLS

_MAX_OPENINGS = 32  # of calls, which are looked at in reasoning


class AnswerParser(Protocol):
    """Splits one answer as it streams. What it returns does not depend on how the answer is cut."""

    @property
    def is_holding(self) -> bool:
        """Whether text was read that no part was returned of."""
        ...

    def push(self, text: str, *, is_final: bool = False) -> AnswerDelta:
        """Return the parts that are certain after `text`; with `is_final`, all that was held back."""
        ...


def answer_parser(
    tags: ReasoningTags,
    tool_calling: ToolCalling | None,
    *,
    separates_reasoning: bool = True,
    is_verbatim: bool = False,
) -> AnswerParser:
    """Return a parser of one answer of a model that writes `tags`. Unless it `separates_reasoning`, that is text.

    Text that `is_verbatim` has a grammar of its own: once it has begun, tags in it are quoted, as in a string of JSON.
    """
    if tags.has_channels:
        return HarmonyParser(
            tool_calling.options if tool_calling else NO_TOOLS,
            begins_in_text=tags.is_past,
            separates_reasoning=separates_reasoning,
            is_verbatim=is_verbatim,
        )
    if not separates_reasoning:
        return TaggedParser(ReasoningTags(), tool_calling)  # text begins with reasoning, and calls may follow
    return TaggedParser(tags.before_verbatim() if is_verbatim else tags, tool_calling, is_verbatim=is_verbatim)


class TaggedParser:
    """Reasoning between tags at the beginning of the answer, then text with calls between tags.

    A call that reasoning ends with, where nothing follows it, is made too: models forget to end their reasoning, and an
    agent would wait. Calls within reasoning are thoughts.
    """

    def __init__(self, tags: ReasoningTags, tool_calling: ToolCalling | None, *, is_verbatim: bool = False) -> None:
        self._reasoning = ReasoningParser(tags)
        self._calling = tool_calling
        self._calls = (
            ToolCallParser(tool_calling.tool_format, tool_calling.options, is_verbatim=is_verbatim)
            if tool_calling
            else None
        )
        self._thoughts: list[str] = []
        self._has_answered = False

    @property
    def is_holding(self) -> bool:
        return self._reasoning.is_holding or (self._calls is not None and self._calls.is_holding)

    def push(self, text: str, *, is_final: bool = False) -> AnswerDelta:
        parsed = self._reasoning.push(text)
        said, reasoning = parsed.text, parsed.reasoning
        if is_final:
            rest = self._reasoning.finish()
            said, reasoning = said + rest.text, reasoning + rest.reasoning
        if self._calls is None or self._calling is None:
            return AnswerDelta(said, reasoning=reasoning)
        separated = self._calls.push(said, is_final=is_final)
        self._thoughts.append(reasoning)
        self._has_answered |= bool(separated.text.strip() or separated.calls)
        calls = separated.calls
        if is_final and not self._has_answered:
            calls = _calls_at_end("".join(self._thoughts), self._calling)
        return AnswerDelta(separated.text, reasoning=reasoning, calls=calls)


def _calls_at_end(text: str, calling: ToolCalling) -> tuple[ToolCallDelta, ...]:
    """Return the whole calls that `text` ends with."""
    openings = [found.start() for tag in calling.tool_format.openings for found in re.finditer(re.escape(tag), text)]
    for begin in sorted(openings)[-_MAX_OPENINGS:]:
        parsed = ToolCallParser(calling.tool_format, calling.options).push(text[begin:], is_final=True)
        if parsed.calls and not parsed.text.strip():
            is_whole = all(call.arguments_object() is not None for call in with_deltas((), parsed.calls))
            return parsed.calls if is_whole else ()
    return ()
