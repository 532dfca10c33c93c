"""What a tool returned, made safe and short: the text that a model reads and a person may see. Pure.

Owns how much of it goes into the context, and the line that says how much does not. Text for a model keeps the
characters of all scripts; control and terminal sequences are dropped as from everything untrusted.
"""

from __future__ import annotations

from app.common.terminal import printable_paste

MAX_CHARACTERS = 24_000  # about 8,000 tokens
_LEAST_CHARACTERS = 2_000
_PART_OF_CONTEXT = 4  # a result takes a quarter of it at most
_CHARACTERS_PER_TOKEN = 3  # of code and tables; prose has more
_HEAD_PARTS, _PARTS = 2, 3  # of the text that is kept, this much from its beginning


def characters_for(n_ctx: int) -> int:
    """Return how many characters the result of one call may have in a context of `n_ctx` tokens."""
    fitting = n_ctx // _PART_OF_CONTEXT * _CHARACTERS_PER_TOKEN
    return max(_LEAST_CHARACTERS, min(MAX_CHARACTERS, fitting))


def decoded(data: bytes) -> str:
    """Return the text of a program's output; bytes that are no UTF-8 become replacement characters."""
    return data.decode("utf-8", "replace")


def cleaned(text: str) -> str:
    """Return `text` without terminal sequences, control characters and bidi controls, its lines ended by newlines."""
    return printable_paste(text)


def bounded(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Return `text` cleaned, and where it is longer than `max_characters` its head and tail around a line that says
    how much was left out. Only what is kept is cleaned: the length of the text does not matter."""
    if len(text) <= max_characters:
        return cleaned(text)
    n_head = max_characters * _HEAD_PARTS // _PARTS
    n_tail = max_characters - n_head
    head, tail = text[:n_head], text[len(text) - n_tail :]
    n_left_out = len(text) - n_head - n_tail
    return f"{cleaned(head)}\n[{n_left_out:,} characters were left out here]\n{cleaned(tail)}"
