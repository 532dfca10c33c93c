"""The themes to choose from, their labels and order: Textual's, and one with high contrast."""

from __future__ import annotations

from collections.abc import Iterable

from textual.theme import Theme

__all__ = ["HIGH_CONTRAST", "theme_choices"]

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


def theme_choices(available: Iterable[str]) -> dict[str, str]:
    """Return theme labels by name, the plain themes first."""
    others = sorted(set(available) - set(_FIRST))
    return {**_FIRST, **{name: name.replace("-", " ").capitalize() for name in others}}
