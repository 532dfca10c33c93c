"""JSON as editors write their settings: with comments and commas before a closing bracket. Pure."""

from __future__ import annotations

import re

__all__ = ["without_comments"]

# A string is taken whole, so that what looks like a comment inside stays.
_PIECES = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_COMMAS = re.compile(r'("(?:[^"\\\n]|\\.)*")|,(?=\s*[}\]])')


def without_comments(text: str) -> str:
    """Return the JSON in `text`; what is left out becomes spaces, so that positions in errors stay right."""
    plain = _PIECES.sub(lambda match: match.group(1) or _blank(match.group()), text)
    return _COMMAS.sub(lambda match: match.group(1) or " ", plain)


def _blank(text: str) -> str:
    return "".join(character if character == "\n" else " " for character in text)
