"""The text of an answer as it streams: a model's reasoning is separated, and no part of a tag is sent.

Owns the tags of reasoning by model family. The service separates its own models' reasoning with it, the client that of
engines which leave it in the answer. Independent of tokens and dialects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = [
    "ANY_FAMILY",
    "HARMONY",
    "NO_REASONING",
    "ReasonedText",
    "ReasoningParser",
    "ReasoningTags",
    "partial_match_length",
    "reasoning_tags_of",
]


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags around reasoning, empty for a model without; `is_open` when the prompt ends inside them.

    `before_text` stands between reasoning and the answer's text, which has begun when the prompt `is_past` it. A model
    that `has_channels` writes several messages with a header each, so that reasoning may follow text.
    """

    opening: str = ""
    closing: str = ""
    is_open: bool = False
    is_past: bool = False
    before_text: str = ""
    has_channels: bool = False

    def opens_in(self, chat_template: str) -> bool:
        return self.opening in chat_template or self.closing in chat_template


NO_REASONING = ReasoningTags()

# Reasoning at the beginning of an answer (source: the chat templates of DeepSeek R1, Qwen3 and GLM; of Seed-OSS; of
# Magistral; of Granite 3).
ANY_FAMILY = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<thinking>", "</thinking>"),
)
# GPT-OSS (source: OpenAI's description of the Harmony format, and the template of gpt-oss-120b).
HARMONY = ReasoningTags(
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant",
    before_text="<|channel|>final<|message|>",
    has_channels=True,
)


@dataclass(frozen=True, slots=True)
class ReasonedText:
    """New text of an answer, and new reasoning."""

    text: str = ""
    reasoning: str = ""


def partial_match_length(text: str, tags: Sequence[str]) -> int:
    """Return how many of the last characters of `text` may begin one of `tags`."""
    longest = max((len(tag) for tag in tags), default=1) - 1
    for n_characters in range(min(longest, len(text)), 0, -1):
        if any(tag.startswith(text[-n_characters:]) for tag in tags):
            return n_characters
    return 0


def reasoning_tags_of(chat_template: str, prompt: str) -> ReasoningTags:
    """Return the tags of a model of `chat_template` that continues `prompt`."""
    for tags in (HARMONY, *ANY_FAMILY):
        if tags.opens_in(chat_template):
            return replace(tags, is_open=prompt.rstrip().endswith(tags.opening))
    return NO_REASONING


class ReasoningParser:
    """Splits one answer as it streams. Reasoning comes first only: later tags are part of the text.

    Of several `tags`, for a model that is not known, those that the answer begins with count. Blanks around reasoning
    are dropped. `finish` returns all text that was held back.
    """

    def __init__(self, *tags: ReasoningTags) -> None:
        self._families = tags
        self._tags = tags[0]
        self._held = ""
        self._drops_blanks = self._tags.is_open
        may_reason = self._tags.opening and not self._tags.is_past
        self._step = self._reasoning if self._tags.is_open else self._begin if may_reason else self._text

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def push(self, text: str) -> ReasonedText:
        """Return the text that is certain after `text`."""
        self._held += text
        return self._next()

    def finish(self) -> ReasonedText:
        """Return the text that was held back, at the end."""
        held, self._held = self._held, ""
        return ReasonedText(reasoning=held.rstrip()) if self._step == self._reasoning else ReasonedText(held)

    def _next(self) -> ReasonedText:
        if self._drops_blanks:
            self._held = self._held.lstrip()
            self._drops_blanks = not self._held
        return self._step()

    def _begin(self) -> ReasonedText:
        text = self._held.lstrip()
        for tags in self._families:
            if text.startswith(tags.opening):
                self._tags, self._held = tags, text.removeprefix(tags.opening)
                self._step, self._drops_blanks = self._reasoning, True
                return self._next()
        if any(tags.opening.startswith(text) for tags in self._families):
            return ReasonedText()
        self._step = self._text
        return self._text()

    def _reasoning(self) -> ReasonedText:
        reasoning, tag, rest = self._held.partition(self._tags.closing)
        if tag:
            self._held, self._step, self._drops_blanks = rest, self._text, True
            return ReasonedText(self._next().text, reasoning=reasoning.rstrip())
        n_shown = len(self._held[: len(self._held) - partial_match_length(self._held, (self._tags.closing,))].rstrip())
        reasoning, self._held = self._held[:n_shown], self._held[n_shown:]
        return ReasonedText(reasoning=reasoning)

    def _text(self) -> ReasonedText:
        text, self._held = self._held, ""
        return ReasonedText(text)
