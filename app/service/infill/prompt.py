"""Texts around a gap, as tokens -> the prompt that makes a model fill it. Pure.

Owns order and budgets. Where the head of a prefix has to go, the text itself says how much of it, so that a keystroke
or a line later the prompt still begins with what was computed. Knows nothing of texts or engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from app.service.infill.tokens import InfillTokens

__all__ = ["InfillParts", "infill_prompt"]

MAX_WINDOW = 2048  # tokens around the gap, the batch of llama-server
DEFAULT_ANSWER = 256  # tokens that are left to an answer without a limit
_N_SPECIAL = 8  # at most, around the gap
_LEEWAY = 8  # a prefix that is longer than its share may be cut by so large a part of it more than it must
_N_MARK = 4  # tokens that say whether a prefix begins with them

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
    """Return the end of `prefix`, `n_most` tokens or a few less.

    Editors send a window of lines, whose head goes as the cursor moves down. So where it begins is not counted from any
    end: of the places where it may, that with the least hash of its tokens stays the same until it has to go.
    """
    n_over = len(prefix) - n_most
    if n_over <= 0:
        return prefix
    places = range(n_over, n_over + max(1, n_most // _LEEWAY))
    return prefix[min(places, key=lambda place: crc32(repr(prefix[place : place + _N_MARK]).encode())) :]


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
