"""How many tokens the messages of a chat take in a context: as engines counted them, estimated where none did. Pure.

Owns the estimate. What of a chat is sent is `app.chat.compaction`'s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.chat.attachments.prompt import compose_prompt, media_of
from app.chat.conversation import Message

_CHARACTERS_PER_TOKEN = 4  # about, in most languages and vocabularies
_WIDE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")  # about a token each
_TEMPLATE_TOKENS = 4  # what a chat template writes around a message
_MEDIA_TOKENS = 256  # of a picture or a sound that nobody has counted
_MOST_PER_ESTIMATED = 8.0  # where an engine counts more, it counted something else
_LEAST_SAMPLE = 32  # estimated tokens of answers: fewer say nothing about a language


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    n_wide = sum(1 for _ in _WIDE.finditer(text))
    return n_wide - (n_wide - len(text)) // _CHARACTERS_PER_TOKEN


@dataclass(frozen=True, slots=True)
class MessageTokens:
    """The tokens of each message of a branch, and `n_fixed` of what is sent before them: the system prompt, tools."""

    of_messages: tuple[int, ...]
    n_fixed: int

    @property
    def total(self) -> int:
        return self.n_fixed + sum(self.of_messages)


def message_tokens(messages: Sequence[Message], system: str = "", n_recounted: int = 0) -> MessageTokens:
    """Return the tokens of `messages` as they are sent one after the other, after the prompt `system`.

    Between two answers the difference of their prompts is exact. The rest is estimated by length, corrected by how
    many tokens the model took for what it wrote itself. The prompts of the first `n_recounted` messages had others
    before them.
    """
    factor = _factor(messages)
    estimates = [_estimate(message, factor) for message in messages]
    tokens = [_written(message) or estimate for message, estimate in zip(messages, estimates, strict=True)]
    prompts = {
        index: n_prompt
        for index, message in enumerate(messages)
        if index >= n_recounted and message.role == "assistant" and (n_prompt := _count(message, "n_prompt_tokens"))
    }
    for first, last in pairwise(prompts):
        n_between = prompts[last] - prompts[first] - tokens[first]
        if n_between > 0:
            _share(tokens, range(first + 1, last), n_between)
    n_fixed = round(estimated_tokens(system) * factor)
    if (counted := next(iter(prompts), None)) is not None:
        n_before = prompts[counted] - n_fixed
        if sum(tokens[:counted]) > n_before > 0:
            _share(tokens, range(counted), n_before)
        n_fixed = max(n_fixed, prompts[counted] - sum(tokens[:counted]))
    return MessageTokens(tuple(tokens), n_fixed)


def _share(tokens: list[int], indexes: range, n_tokens: int) -> None:
    """Change the tokens of some messages in proportion, so that they are `n_tokens` together."""
    n_estimated = sum(tokens[index] for index in indexes)
    n_given = n_so_far = 0
    for index in indexes if n_estimated else ():
        n_so_far += tokens[index]
        tokens[index] = n_so_far * n_tokens // n_estimated - n_given
        n_given += tokens[index]


def _estimate(message: Message, factor: float) -> int:
    calls = sum(estimated_tokens(call.name + call.arguments) + _TEMPLATE_TOKENS for call in message.calls)
    n_media = len(media_of(message.attachments))
    text = compose_prompt(message.content, message.attachments)
    return round((estimated_tokens(text) + calls) * factor) + n_media * _MEDIA_TOKENS + _TEMPLATE_TOKENS


def _written(message: Message) -> int:
    """Return the tokens that a model wrote, without thoughts, which are not sent again; 0 where nobody counted them."""
    if message.role not in ("assistant", "summary"):
        return 0
    n_answer = _count(message, "n_output_tokens") - _count(message, "n_thought_tokens")
    return n_answer + _TEMPLATE_TOKENS if n_answer > 0 else 0


def _factor(messages: Sequence[Message]) -> float:
    """Return how many tokens the model takes for one that is estimated, by the answers that it wrote."""
    n_counted = n_estimated = 0
    for message in messages:
        if message.role == "assistant" and (n_output := _count(message, "n_output_tokens")):
            n_counted += n_output
            n_estimated += estimated_tokens(message.reasoning + message.content) + sum(
                estimated_tokens(call.name + call.arguments) for call in message.calls
            )
    if n_estimated < _LEAST_SAMPLE:
        return 1.0
    return min(max(n_counted / n_estimated, 1 / _MOST_PER_ESTIMATED), _MOST_PER_ESTIMATED)


def _count(message: Message, name: str) -> int:
    """Return a figure of a message, 0 for none: an imported chat may hold anything."""
    value = message.stats.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
