"""How Markdown is read, live and folded: GitHub's kind, HTML as text, and nothing in it that a terminal would obey.

Owns what the parser itself brings about: character references and percent signs in addresses become characters only
there, behind every cleaning of the source.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from app.terminal import printable

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token

__all__ = ["markdown_parser"]


def markdown_parser() -> MarkdownIt:
    """Return a parser that shows HTML as text, so that nothing a model writes disappears, and whose tokens are fit for
    a terminal."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("gfm-like", {"html": False})
    parser.core.ruler.push("printable", _make_printable)
    return parser


def _make_printable(state: StateCore) -> None:
    _clean(state.tokens)


def _clean(tokens: Iterable[Token]) -> None:
    for token in tokens:
        token.content, token.info = printable(token.content), printable(token.info)
        _clean(token.children or ())
