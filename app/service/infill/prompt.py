"""Texts around a gap, as tokens -> the prompt that makes a model fill it. Pure.

Owns order and budgets. Where something has to go, it goes in steps, so that a keystroke later the prompt still begins
with what was computed. Knows nothing of texts or engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.service.infill.tokens import InfillTokens

__all__ = ["InfillParts", "infill_prompt"]

MAX_WINDOW = 2048  # tokens around the gap, the batch of llama-server
DEFAULT_ANSWER = 256  # tokens that are left to an answer without a limit
_N_SPECIAL = 8  # at most, around the gap
_STEPS = 16  # in which a prefix moves on that is longer than its share

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillParts:
    """What stands before the gap and behind it, and other files that may help, the most helpful last.

    `project` and `file_name` are the names that stand before them, each file in `extras` begins with its own.
    """

    prefix: Tokens
    suffix: Tokens
    extras: Sequence[Tokens] = ()
    project: Tokens = ()
    file_name: Tokens = ()


def infill_prompt(parts: InfillParts, tokens: InfillTokens, n_ctx: int, n_answer: int | None) -> Tokens:
    """Return the prompt for a context of `n_ctx` tokens, of which the answer gets `n_answer` at least.

    The end of the prefix gets three quarters of a window, the begin of the suffix one quarter; the window is half the
    context at most. Other files take what is left, the least helpful giving way whole.
    """
    window = min(MAX_WINDOW, n_ctx // 2)
    prefix = _end_of(parts.prefix, 3 * window // 4)
    suffix = parts.suffix[: window // 4]
    n_reserved = DEFAULT_ANSWER if n_answer is None else n_answer
    extras = _extras(parts, tokens, n_ctx - window - _N_SPECIAL - min(n_reserved, n_ctx // 4))
    begin = _one(tokens.begin)
    if tokens.is_suffix_first:
        return (*extras, *begin, tokens.suffix, *suffix, tokens.prefix, *prefix)
    return (*extras, *begin, tokens.prefix, *prefix, tokens.suffix, *suffix, *_one(tokens.middle))


def _end_of(prefix: Tokens, n_most: int) -> Tokens:
    n_over = len(prefix) - n_most
    if n_over <= 0:
        return prefix
    step = max(1, n_most // _STEPS)
    return prefix[-(-n_over // step) * step :]


def _extras(parts: InfillParts, tokens: InfillTokens, n_room: int) -> Tokens:
    """Return the project's name and as many of the other files, counted from the last, as there is room for."""
    if not parts.extras:
        return ()
    separator = _one(tokens.separator)
    head = (*_one(tokens.repository), *parts.project) if tokens.repository is not None else ()
    tail = (*separator, *parts.file_name) if separator else ()
    kept: list[Tokens] = []
    n_room -= len(head) + len(tail)
    for extra in reversed(parts.extras):
        n_room -= len(separator) + len(extra)
        if n_room < 0:
            break
        kept.append((*separator, *extra))
    if not kept:
        return ()
    return (*head, *(token for extra in reversed(kept) for token in extra), *tail)


def _one(token: int | None) -> Tokens:
    return () if token is None else (token,)
