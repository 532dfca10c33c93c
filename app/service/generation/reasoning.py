"""Separates a model's reasoning from its answer while both stream.

Owns the tags by model family, and holds text back so that no part of a tag is sent. Independent of tokens and
dialects.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.loop.detokenizer import partial_match_length
from app.service.tools.tool import ParsedText

__all__ = ["NO_REASONING", "ReasoningParser", "ReasoningTags", "reasoning_tags_of"]

# The tags of each family (source: the chat templates of DeepSeek R1, Qwen3 and GLM; of Seed-OSS; of
# Magistral; of Granite 3).
_FAMILIES = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
)


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags around reasoning, empty for a model without; `is_open` when the prompt ends inside them."""

    opening: str = ""
    closing: str = ""
    is_open: bool = False


NO_REASONING = ReasoningTags()


def reasoning_tags_of(chat_template: str, prompt: str) -> ReasoningTags:
    """Return the tags of a model of `chat_template` that continues `prompt`."""
    for opening, closing in _FAMILIES:
        if opening in chat_template or closing in chat_template:
            return ReasoningTags(opening, closing, is_open=prompt.rstrip().endswith(opening))
    return NO_REASONING


class ReasoningParser:
    """Splits one answer as it streams. Reasoning comes first only: later tags are part of the text.

    Blanks around reasoning are dropped. `finish` returns all text that was held back.
    """

    def __init__(self, tags: ReasoningTags) -> None:
        self._tags = tags
        self._held = ""
        self._drops_blanks = tags.is_open
        self._step = self._reasoning if tags.is_open else self._begin if tags.opening else self._text

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def push(self, text: str) -> ParsedText:
        """Return the text that is certain after `text`."""
        self._held += text
        return self._next()

    def finish(self) -> ParsedText:
        """Return the text that was held back, at the end."""
        held, self._held = self._held, ""
        return ParsedText(reasoning=held.rstrip()) if self._step == self._reasoning else ParsedText(held)

    def _next(self) -> ParsedText:
        if self._drops_blanks:
            self._held = self._held.lstrip()
            self._drops_blanks = not self._held
        return self._step()

    def _begin(self) -> ParsedText:
        text = self._held.lstrip()
        if text.startswith(self._tags.opening):
            self._held = text.removeprefix(self._tags.opening)
            self._step, self._drops_blanks = self._reasoning, True
            return self._next()
        if self._tags.opening.startswith(text):
            return ParsedText()
        self._step = self._text
        return self._text()

    def _reasoning(self) -> ParsedText:
        reasoning, tag, rest = self._held.partition(self._tags.closing)
        if tag:
            self._held, self._step, self._drops_blanks = rest, self._text, True
            return ParsedText(self._next().text, reasoning=reasoning.rstrip())
        n_shown = len(self._held[: len(self._held) - partial_match_length(self._held, (self._tags.closing,))].rstrip())
        reasoning, self._held = self._held[:n_shown], self._held[n_shown:]
        return ParsedText(reasoning=reasoning)

    def _text(self) -> ParsedText:
        text, self._held = self._held, ""
        return ParsedText(text)
