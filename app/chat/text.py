"""Text for the store.

Owns which characters cannot be stored. Which a terminal may show is `app.terminal`'s.
"""

from __future__ import annotations

__all__ = ["MATCH_BEGIN", "MATCH_END", "provisional_title", "storable"]

# Noncharacters of Unicode, for internal use: they mark matches, so no stored text contains them.
MATCH_BEGIN = "\ufdd0"
MATCH_END = "\ufdd1"
_REPLACEMENT = 0xFFFD
_UNSTORABLE = dict.fromkeys((0, ord(MATCH_BEGIN), ord(MATCH_END), *range(0xD800, 0xE000)), _REPLACEMENT)
_TITLE_CHARACTERS = 60


def storable(text: str) -> str:
    """Return `text` with U+FFFD for NUL, lone surrogates and our two marks: SQLite takes the rest as it is."""
    return text.translate(_UNSTORABLE)


def provisional_title(text: str) -> str:
    """Return the first title of a chat that begins with `text`: at most 60 characters."""
    words = " ".join(text.split())
    return words if len(words) <= _TITLE_CHARACTERS else f"{words[: _TITLE_CHARACTERS - 1].rstrip()}…"
