"""What a person types to search -> an expression for SQLite's full-text index.

Pure. What is typed is data: every word is quoted, so nothing in it is an operator.
"""

from __future__ import annotations

import re

from app.chat.text import storable

__all__ = ["MAX_QUERY_CHARACTERS", "match_expression"]

MAX_QUERY_CHARACTERS = 500
_PHRASE_OR_WORD = re.compile(r'"([^"]*)"?|([^\s"]+)')


def match_expression(typed: str) -> str:
    """Return an expression that finds what has all words of `typed`; empty where there is none to look for.

    "Words in quotes" are found side by side. The last word, while it is being typed, is found by its beginning.
    What comes after 500 characters is not looked for.
    """
    typed = storable(typed)[:MAX_QUERY_CHARACTERS]
    parts = [match.group(1) or match.group(2) or "" for match in _PHRASE_OR_WORD.finditer(typed)]
    terms = [_quoted(part) for part in parts if _has_words(part)]
    if terms and typed[-1] not in ' \t\n"' and _has_words(parts[-1]):
        terms[-1] += "*"
    return " ".join(terms)


def _has_words(part: str) -> bool:
    return any(character.isalnum() for character in part)


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'
