"""The themes to choose from, their labels and order: Textual's, and one with high contrast.

Owns how the app looks without colours, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

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
FooterKey:nocolor .footer-key--key { text-style: bold; }
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
        "text-muted": "#ffffff",
        "text-disabled": "#c8c8c8",
        "foreground-muted": "#ffffff",
        "foreground-disabled": "#c8c8c8",
        "block-cursor-background": "#ffff00",
        "block-cursor-foreground": "#000000",
        "block-cursor-text-style": "bold",
        "footer-key-foreground": "#ffff00",
        "footer-description-foreground": "#ffffff",
        "footer-background": "#000000",
        "input-cursor-background": "#ffff00",
        "input-cursor-foreground": "#000000",
        "input-selection-background": "#004080",
        "border": "#ffffff",
        "border-blurred": "#c8c8c8",
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


class WithoutColors(LineFilter):
    """Removes every colour, the terminal's own too: Textual's filter for NO_COLOR writes greys."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's
        """Return the segments with the attributes, links and clicks of their styles only."""
        return [Segment(text, style and _without_colors(style), control) for text, style, control in segments]


@lru_cache(4096)
def _without_colors(style: Style) -> Style:
    return Style(
        bold=style.bold,
        dim=style.dim,
        italic=style.italic,
        underline=style.underline,
        underline2=style.underline2,
        strike=style.strike,
        reverse=style.reverse,
        link=style.link,
        meta=style.meta,
    )


def theme_choices(available: Iterable[str]) -> dict[str, str]:
    """Return theme labels by name, the plain themes first."""
    others = sorted(set(available) - set(_FIRST))
    return {**_FIRST, **{name: name.replace("-", " ").capitalize() for name in others}}
