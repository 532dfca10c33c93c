"""The app's stylesheet, which parses each source of styles once.

Owns what was parsed. Textual 8.2.8 keeps the last 64 sources, of which the app has more, and forgets them all when a
screen with styles of its own is shown for the first time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from textual.cache import LRUCache
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

_MAX_SOURCES = 512
_MAX_THEMES = 4

_Parsed = LRUCache[tuple[Any, ...], list[RuleSet]]


@lru_cache(_MAX_THEMES)
def _parsed_with(_variables: frozenset[tuple[str, str]]) -> _Parsed:
    """Return the rules parsed with these values of the variables, by source; the apps of one process share them."""
    return LRUCache(_MAX_SOURCES)


class CachedStylesheet(Stylesheet):
    """A stylesheet that keeps its parsed rules while screens are added, and while the theme is another one."""

    def __init__(self, *, variables: dict[str, str] | None = None) -> None:
        super().__init__(variables=variables)
        self._parse_cache = _parsed_with(frozenset(self._variables.items()))

    def set_variables(self, variables: dict[str, str]) -> None:
        self._parse_cache = LRUCache(1)  # the base class clears it; what other themes parsed stays
        super().set_variables(variables)
        self._parse_cache = _parsed_with(frozenset(variables.items()))

    def reparse(self) -> None:
        """Take what is parsed, and parse the rest."""
        self.parse()
