"""What a model thinks aloud before its answer, told apart from the answer while both still come.

Owns the tags by model family and the hold-back that keeps a tag from being shown in part. Knows nothing of tokens or of
how a dialect names the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.loop.detokenizer import partial_match_length

__all__ = ["NO_REASONING", "ReasoningParser", "ReasoningTags", "TextParts", "reasoning_tags_of"]

# How families begin and end a thought (source: the chat templates of DeepSeek R1, Qwen3 and GLM; of Seed-OSS; of
# Magistral; of Granite 3).
_FAMILIES = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
)


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags around a thought, empty for a model that has none; `is_open` when the prompt ends within one."""

    opening: str = ""
    closing: str = ""
    is_open: bool = False


NO_REASONING = ReasoningTags()


@dataclass(frozen=True, slots=True)
class TextParts:
    """New text: of a thought, of the answer, or of both."""

    thought: str = ""
    answer: str = ""


def reasoning_tags_of(chat_template: str, prompt: str) -> ReasoningTags:
    """Return how a model of `chat_template` marks its thoughts, when it goes on from `prompt`."""
    for opening, closing in _FAMILIES:
        if opening in chat_template or closing in chat_template:
            return ReasoningTags(opening, closing, is_open=prompt.rstrip().endswith(opening))
    return NO_REASONING


class ReasoningParser:
    """Splits one answer as it grows. Only a thought at the begin is one: later tags are what the model writes about.

    Blanks around a thought are dropped. All that is held back comes with `finish`.
    """

    def __init__(self, thinking: ReasoningTags) -> None:
        self._thinking = thinking
        self._held = ""
        self._step = self._think_first if thinking.is_open else self._begin if thinking.opening else self._answer

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def push(self, text: str) -> TextParts:
        """Return what `text` makes safe to show."""
        self._held += text
        return self._step()

    def finish(self) -> TextParts:
        """Return what was held back, at the end."""
        held, self._held = self._held, ""
        is_thought = self._step in (self._think, self._think_first)
        return TextParts(thought=held.rstrip()) if is_thought else TextParts(answer=held)

    def _begin(self) -> TextParts:
        text = self._held.lstrip()
        if text.startswith(self._thinking.opening):
            self._held = text.removeprefix(self._thinking.opening)
            self._step = self._think_first
            return self._think_first()
        if self._thinking.opening.startswith(text):
            return TextParts()
        self._step = self._answer
        return self._answer()

    def _think_first(self) -> TextParts:
        self._held = self._held.lstrip()
        if not self._held:
            return TextParts()
        self._step = self._think
        return self._think()

    def _think(self) -> TextParts:
        thought, tag, rest = self._held.partition(self._thinking.closing)
        if tag:
            self._held, self._step = rest, self._answer_first
            return TextParts(thought.rstrip(), self._answer_first().answer)
        n_shown = len(
            self._held[: len(self._held) - partial_match_length(self._held, (self._thinking.closing,))].rstrip()
        )
        thought, self._held = self._held[:n_shown], self._held[n_shown:]
        return TextParts(thought)

    def _answer_first(self) -> TextParts:
        self._held = self._held.lstrip()
        if not self._held:
            return TextParts()
        self._step = self._answer
        return self._answer()

    def _answer(self) -> TextParts:
        answer, self._held = self._held, ""
        return TextParts(answer=answer)
