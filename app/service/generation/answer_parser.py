"""The parts of one answer as it streams: reasoning, text and tool calls, however the model writes them.

Owns which parser reads the answers of which model. Independent of dialects and of the engine.
"""

from __future__ import annotations

from typing import Protocol

from app.answer_text import ReasoningParser, ReasoningTags
from app.service.generation.harmony import HarmonyParser
from app.service.tools.parser import ToolCalling, ToolCallParser
from app.service.tools.tool import NO_TOOLS, ParsedText

__all__ = ["AnswerParser", "TaggedParser", "answer_parser"]


class AnswerParser(Protocol):
    """Splits one answer as it streams. What it returns does not depend on how the answer is cut."""

    @property
    def is_holding(self) -> bool:
        """Whether text was read that no part was returned of."""
        ...

    def push(self, text: str, *, is_final: bool = False) -> ParsedText:
        """Return the parts that are certain after `text`; with `is_final`, all that was held back."""
        ...


def answer_parser(
    tags: ReasoningTags, tool_calling: ToolCalling | None, *, separates_reasoning: bool = True
) -> AnswerParser:
    """Return a parser of one answer of a model that writes `tags`. Unless it `separates_reasoning`, that is text."""
    if tags.has_channels:
        options = tool_calling.options if tool_calling else NO_TOOLS
        return HarmonyParser(options, begins_in_text=tags.is_past, separates_reasoning=separates_reasoning)
    return TaggedParser(tags if separates_reasoning else ReasoningTags(), tool_calling)


class TaggedParser:
    """Reasoning between tags at the beginning of the answer, then text with calls between tags."""

    def __init__(self, tags: ReasoningTags, tool_calling: ToolCalling | None) -> None:
        self._reasoning = ReasoningParser(tags)
        self._calls = ToolCallParser(tool_calling.tool_format, tool_calling.options) if tool_calling else None

    @property
    def is_holding(self) -> bool:
        return self._reasoning.is_holding or (self._calls is not None and self._calls.is_holding)

    def push(self, text: str, *, is_final: bool = False) -> ParsedText:
        parsed = self._reasoning.push(text)
        said, reasoning = parsed.text, parsed.reasoning
        if is_final:
            rest = self._reasoning.finish()
            said, reasoning = said + rest.text, reasoning + rest.reasoning
        if self._calls is None:
            return ParsedText(said, reasoning=reasoning)
        separated = self._calls.push(said, is_final=is_final)
        return ParsedText(separated.text, separated.calls, reasoning)
