"""The text of an answer as it streams: a model's reasoning is separated, and no part of a tag is sent.

Owns the tags of reasoning by model family. The service separates its own models' reasoning with it, the client that of
engines which leave it in the answer. Independent of tokens and dialects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

_PARAGRAPH_BREAK = "\n\n"  # between two pieces of reasoning


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags around reasoning, empty for a model without; `is_open` when the prompt ends inside them.

    `before_text` stands between reasoning and the answer's text, which has begun when the prompt `is_past` it. A model
    that `has_channels` writes several messages with a header each, so that reasoning may follow text. Where each
    message has a header, the prompt ends with what all of them begin with: `begun`, as much a part of the first tag as
    of later ones.

    Reasoning that is not closed ends before one of `stops`, and `recurs` where its tags are tokens that no text has.
    Tags `dropped` may stand anywhere in the text, those `around_text` right behind reasoning and at the end. `mark` is
    in the family's templates where `opening` is put together there; `tokens` are the special tokens in tags of several.
    """

    opening: str = ""
    closing: str = ""
    is_open: bool = False
    is_past: bool = False
    before_text: str = ""
    has_channels: bool = False
    stops: tuple[str, ...] = ()
    recurs: bool = False
    dropped: tuple[str, ...] = ()
    around_text: tuple[str, str] = ("", "")
    mark: str = ""
    tokens: tuple[str, ...] = ()
    begun: str = ""

    @property
    def has_reasoning(self) -> bool:
        return bool(self.opening)

    def opens_in(self, chat_template: str) -> bool:
        if self.mark:
            return self.mark in chat_template
        return self.opening in chat_template or self.closing in chat_template

    def before_verbatim(self) -> ReasoningTags:
        """Return these tags for an answer whose text has none of them."""
        return replace(self, recurs=False, dropped=(), around_text=(self.before_text if self.begun else "", ""))

    def as_text(self) -> ReasoningTags:
        """Return these tags for an answer that shows its reasoning as text, with the tags around it."""
        return replace(self, opening="", closing="", stops=(), recurs=False) if self.begun else NO_REASONING

    @property
    def visible(self) -> tuple[str, ...]:
        """The texts that may be special tokens and have to be seen."""
        around = (self.opening, self.closing) if self.opening and not self.is_past else ()
        return (*around, *self.dropped, *self.tokens)


NO_REASONING = ReasoningTags()

# Families with tokens of their own for reasoning (source: the chat templates of Gemma 4, Kimi K3, Command A, Solar
# Open, Apertus, MiniMax M3, Hunyuan 3, Apriel, Granite 3.3, Muse Glimmer).
_WITH_TOKENS = (
    ReasoningTags(
        "<|channel>thought",
        "<channel|>",
        stops=("<|tool_call>",),
        recurs=True,
        dropped=("<channel|>",),
        mark="<|channel>thought",
        tokens=("<|channel>",),
    ),
    ReasoningTags(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        stops=("<|open|>response<|sep|>", "<|open|>tools<|sep|>"),
        recurs=True,
        dropped=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
        mark="<|open|>",
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    ReasoningTags(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        stops=("<|START_ACTION|>", "<|START_RESPONSE|>", "<|START_TEXT|>"),
        recurs=True,
        dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    ReasoningTags(
        "<|think|>",
        "<|end|>",
        stops=("<|begin|>",),
        dropped=("<|begin|>assistant", "<|content|>", "<|end|>"),
        mark="<|begin|>assistant<|think|>",
        tokens=("<|begin|>",),
    ),
    ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>", stops=("<|tools_prefix|>",), recurs=True),
    ReasoningTags("<mm:think>", "</mm:think>", recurs=True, dropped=("</mm:think>",)),
    ReasoningTags("<think:opensource>", "</think:opensource>", mark="<think{}>"),
    ReasoningTags(
        "Here are my reasoning steps:",
        "[BEGIN FINAL RESPONSE]",
        dropped=("[END FINAL RESPONSE]",),
        mark="[BEGIN FINAL RESPONSE]",
    ),
    ReasoningTags(
        "<think>", "</think>", around_text=("<response>", "</response>"), mark="between <response></response>"
    ),
    ReasoningTags(
        "<|start|>assistant to=self<|message|>",
        "<|eom|>",
        before_text="<|start|>assistant to=user<|message|>",
        stops=("<|start|>assistant", "<|eot|>"),
        recurs=True,
        dropped=("<|start|>assistant to=user<|message|>", "<|start|>assistant<|message|>", "<|eom|>", "<|eot|>"),
        mark="<atem:function_calls>",
        tokens=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
        begun="<|start|>assistant",
    ),
)
# Families without reasoning whose messages have a header or an end that is none of the text (source: the chat templates
# of Functionary 3.2 and GigaChat 3).
_WITHOUT_REASONING = (
    ReasoningTags(before_text=">>>all\n", dropped=(">>>all\n",), mark=">>>${recipient}", begun=">>>"),
    ReasoningTags(dropped=("<|message_sep|>",), mark="<|message_sep|>"),
)
# Reasoning at the beginning of an answer (source: the chat templates of DeepSeek R1, Qwen3 and GLM; of Seed-OSS; of
# Magistral; of Granite 3).
ANY_FAMILY = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<thinking>", "</thinking>"),
    *_WITH_TOKENS,
)
# GPT-OSS (source: OpenAI's description of the Harmony format, and the template of gpt-oss-120b).
HARMONY = ReasoningTags(
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant",
    before_text="<|channel|>final<|message|>",
    has_channels=True,
    mark="<|channel|>",
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
    for tags in (HARMONY, *_WITH_TOKENS, *_WITHOUT_REASONING, *ANY_FAMILY):
        if tags.opens_in(chat_template):
            is_open = tags.has_reasoning and prompt.rstrip().endswith(tags.opening)
            return replace(tags, is_open=is_open, begun=tags.begun if prompt.endswith(tags.begun) else "")
    return NO_REASONING


class ReasoningParser:
    """Splits one answer as it streams. Reasoning comes first only, unless it `recurs`: later tags are part of the text.
    Of several `tags`, for a model that is not known, those that the answer begins with count. Blanks around reasoning
    are dropped. What the prompt has `begun` of an answer's first tag is text behind which a call may come, if it
    `may_call`. `finish` returns all text that was held back."""

    def __init__(self, *tags: ReasoningTags, may_call: bool = False) -> None:
        self._families = tags
        self._tags = tags[0]
        self._held = self._tags.begun
        self._may_call = may_call
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self._behind_text: tuple[str, ...] = ()
        self._has_reasoned = self._begins_reasoning = False
        self._drops_blanks = self._tags.is_open
        may_reason = self._tags.opening and not self._tags.is_past
        begin = self._begin_message if self._tags.begun else self._begin if may_reason else self._text
        self._step = self._reasoning if self._tags.is_open else begin

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def push(self, text: str) -> ReasonedText:
        """Return the text that is certain after `text`."""
        self._held += text
        while True:
            if self._drops_blanks:
                self._held = self._held.lstrip()
                self._drops_blanks = not self._held
            if not self._step():
                return self._shown()

    def finish(self) -> ReasonedText:
        """Return the text that was held back, at the end."""
        held, self._held = self._held, ""
        if self._tags.begun and self._step in (self._begin_message, self._begin_text):
            return self._shown()  # an answer that was cut within its first tag, or the one behind reasoning
        if self._step == self._reasoning:
            self._reason(held.rstrip())
        elif self._tags.begun and held.startswith((self._tags.begun, *self._tags.tokens)):  # or within a later one
            return self._shown()
        else:
            self._texts.append(held)
        return self._shown()

    def _shown(self) -> ReasonedText:
        shown = ReasonedText("".join(self._texts), "".join(self._reasonings))
        self._texts, self._reasonings = [], []
        return shown

    # Each step reads from the held text and returns whether another can follow without more text

    def _begin_message(self) -> bool:
        """Read up to where it is clear which of the tags the prompt has begun."""
        tags = self._tags
        ways = tuple(filter(None, (tags.opening, *tags.dropped, tags.around_text[0])))
        is_tag = self._held.startswith(ways)
        if not is_tag and any(way.startswith(self._held) for way in ways):
            return False
        if not (is_tag or self._may_call):  # a model that writes no header where none can be enforced
            self._held = self._held.removeprefix(tags.begun)
        self._step = self._begin if tags.opening and self._held.startswith(tags.opening) else self._begin_text
        return True

    def _begin(self) -> bool:
        text = self._held.lstrip()
        for tags in self._families:
            if text.startswith(tags.opening):
                self._tags, self._held = tags, text.removeprefix(tags.opening)
                self._step, self._drops_blanks = self._reasoning, True
                return True
        if any(tags.opening.startswith(text) for tags in self._families):
            return False
        self._step = self._text
        return True

    def _reasoning(self) -> bool:
        ends = (self._tags.closing, *self._tags.stops)
        if found := _first(self._held, ends):
            end, tag = found
            self._reason(self._held[:end].rstrip())
            self._held = self._held[end:].removeprefix(self._tags.closing if tag == self._tags.closing else "")
            self._step, self._drops_blanks = self._begin_text, True
            return True
        n_shown = len(self._held[: len(self._held) - partial_match_length(self._held, ends)].rstrip())
        self._reason(self._held[:n_shown])
        self._held = self._held[n_shown:]
        return False

    def _reason(self, text: str) -> None:
        if text and self._has_reasoned and self._begins_reasoning:
            self._reasonings.append(_PARAGRAPH_BREAK)
        if text:
            self._reasonings.append(text)
            self._has_reasoned, self._begins_reasoning = True, False

    def _begin_text(self) -> bool:
        """Drop the tag before the text, and see to the one behind it."""
        opening, closing = self._tags.around_text
        if opening and opening != self._held and opening.startswith(self._held):
            return False
        if opening and self._held.startswith(opening):
            self._held = self._held.removeprefix(opening)
            self._behind_text, self._drops_blanks = ((closing,) if closing else ()), True
        self._step = self._text
        return True

    def _text(self) -> bool:
        tags = self._tags
        marks = (*tags.dropped, *self._behind_text, *((tags.opening,) if tags.recurs else ()))
        if found := _first(self._held, marks):
            end, tag = found
            self._texts.append(self._held[:end])
            self._held = self._held[end + len(tag) :]
            if tag == tags.opening:
                self._step, self._drops_blanks, self._begins_reasoning = self._reasoning, True, True
            return True
        n_shown = len(self._held) - partial_match_length(self._held, marks)
        self._texts.append(self._held[:n_shown])
        self._held = self._held[n_shown:]
        return False


def _first(text: str, tags: Sequence[str]) -> tuple[int, str] | None:
    """Return where the first of `tags` begins in `text`, and which it is."""
    return min(((index, tag) for tag in tags if (index := text.find(tag)) >= 0), default=None)
