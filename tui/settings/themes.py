"""How the app looks: the themes to choose from (Textual's, and one with high contrast), the look without colours, and a
stylesheet that parses each source of styles once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.cache import LRUCache
from textual.color import Color
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.filter import LineFilter
from textual.theme import Theme

from quantizer.system.errors import UsageError

# What a background shows otherwise: the chosen row (Textual draws no option in reverse), a cursor, a selection, code.
NO_COLOR_CSS = """
OptionList:nocolor > .option-list--option-highlighted { text-style: bold; }
OptionList:nocolor:focus > .option-list--option-highlighted { text-style: bold underline; }
DataTable:nocolor > .datatable--cursor { text-style: reverse; }
DataTable:nocolor > .datatable--header { text-style: bold underline; }
Input:nocolor > .input--cursor { text-style: reverse; }
Input:nocolor > .input--selection { text-style: reverse; }
TextArea:nocolor .text-area--cursor { text-style: reverse; }
TextArea:nocolor .text-area--selection { text-style: reverse; }
Screen:nocolor > .screen--selection { text-style: reverse; }
Select:nocolor:focus > SelectCurrent { text-style: reverse; }
Checkbox:nocolor:focus > .toggle--label { text-style: reverse; }
Button:nocolor:focus { text-style: reverse; }
MarkdownText:nocolor > .markdown-text--heading { text-style: bold underline; }
MarkdownText:nocolor > .markdown-text--code { text-style: bold; }
NotificationLine:nocolor { text-style: reverse; }
"""

# Every text on its ground has a contrast of at least 7 to 1, which is WCAG's AAA.
HIGH_CONTRAST = Theme(
    name="high-contrast",
    primary="#ffff00",
    secondary="#00ffff",
    accent="#ffff00",
    warning="#ffcc00",
    error="#ff9090",
    success="#00ff00",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#1c1c1c",
    boost="#1c1c1c",
    text_alpha=1.0,
    variables={
        **dict.fromkeys(("bright", "faint", "text-muted", "foreground-muted"), "#ffffff"),
        **dict.fromkeys(("text-disabled", "foreground-disabled", "border-blurred"), "#c8c8c8"),
        **dict.fromkeys(("block-cursor-background", "input-cursor-background"), "#ffff00"),
        **dict.fromkeys(("block-cursor-foreground", "input-cursor-foreground"), "#000000"),
        "block-cursor-text-style": "bold",
        "input-selection-background": "#004080",
        "border": "#ffffff",
        "scrollbar": "#ffffff",
        "scrollbar-background": "#000000",
    },
)

_FIRST = {
    "textual-dark": "Dark",
    "textual-light": "Light",
    HIGH_CONTRAST.name: "High contrast",
    "ansi-dark": "ANSI, dark: the terminal's own colours",
    "ansi-light": "ANSI, light: the terminal's own colours",
}

_MAX_SOURCES = 512
_MAX_THEMES = 4
_Parsed = LRUCache[tuple[Any, ...], list[RuleSet]]


class WithoutColors(LineFilter):
    """Removes every colour, the terminal's own too: Textual's filter for NO_COLOR writes greys."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's
        return [Segment(text, style and _without_colors(style), control) for text, style, control in segments]


@lru_cache(4096)
def _without_colors(style: Style) -> Style:
    attributes = ("bold", "dim", "italic", "underline", "underline2", "strike", "reverse")
    return Style(link=style.link, meta=style.meta, **{name: getattr(style, name) for name in attributes})


def theme_choices(available: Iterable[str]) -> dict[str, str]:
    others = sorted(set(available) - set(_FIRST))
    return {**_FIRST, **{name: name.replace("-", " ").capitalize() for name in others}}


def find_theme(typed: str, available: Iterable[str]) -> str:
    """Return the theme called `typed`: its name or label, or the first of the choices whose name has all the words.
    Raises UsageError."""
    choices, wanted = theme_choices(available), typed.casefold().strip()
    for name, label in choices.items():
        if wanted in (name, label.casefold()):
            return name
    found = (name for name in choices if all(word in name for word in wanted.split()))
    if fitting := next(found, ""):
        return fitting
    raise UsageError(f"There is no theme {typed}.", f"Themes: {', '.join(choices)}.")


@lru_cache(_MAX_THEMES)
def _parsed_with(_variables: frozenset[tuple[str, str]]) -> _Parsed:
    """Return the rules parsed with these values of the variables, by source; the apps of one process share them."""
    return LRUCache(_MAX_SOURCES)


class CachedStylesheet(Stylesheet):
    """A stylesheet that keeps its parsed rules while screens are added, and while the theme is another one. Textual
    8.2.8 keeps the last 64 sources, of which the app has more, and forgets them all when a screen with its own styles
    is shown for the first time."""

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
