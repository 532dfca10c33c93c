"""The colours of text on every theme: bright, muted and faint text, the accent, and good, careful and bad.

A theme gives base colours; the text colours that Textual makes of them are hard to read in some themes. Here they are
moved towards black or white until they stand out from every ground that text is drawn on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.color import Color

TEXT_CONTRAST = 4.5  # of text, WCAG 2.2's level AA
FAINT_CONTRAST = 3.0  # of rules and placeholders: WCAG 2.2's least for parts of a control
GROUNDS = ("background", "surface", "panel", "block-cursor-background", "block-cursor-blurred-background")

# The theme's colour that each colour of text comes from.
_BASES = {
    "text-primary": "primary",
    "text-secondary": "secondary",
    "text-accent": "accent",
    "text-success": "success",
    "text-warning": "warning",
    "text-error": "error",
}
_MUTED, _FAINT = 0.62, 0.42  # of the way from the background to the foreground
_CURSOR, _BLURRED_CURSOR = 0.18, 0.08  # of the accent, and of the foreground, in the ground of the selected row
_N_STEPS = 20  # to black or white


def design_colors(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that this design sets, from those of a theme: `bright` for what one came for, `text-muted`
    for who, when and units, `faint` for rules and placeholders, the accent, and the colours of success, warning and
    error. A theme of the terminal's own colours, which nobody knows, keeps them."""
    foreground, background = Color.parse(variables["foreground"]), Color.parse(variables["background"])
    if foreground.ansi is not None or background.ansi is not None:
        return {"bright": variables["foreground"], "faint": variables["text-muted"]}
    cursor = {
        "block-cursor-background": background.blend(Color.parse(variables["accent"]), _CURSOR).hex,
        "block-cursor-blurred-background": background.blend(foreground, _BLURRED_CURSOR).hex,
    }
    grounds = [luminance(background + Color.parse({**variables, **cursor}[name])) for name in GROUNDS]
    pole = background.get_contrast_text(1.0)

    def text(color: Color, least: float = TEXT_CONTRAST) -> str:
        return readable(color, pole, grounds, least).hex

    muted, faint = (
        text(background.blend(foreground, _MUTED)),
        text(background.blend(foreground, _FAINT), FAINT_CONTRAST),
    )
    normal = text(foreground)
    return {
        **cursor,
        **{name: text(Color.parse(variables[base])) for name, base in _BASES.items()},
        "foreground": normal,
        "bright": Color.parse(normal).blend(pole, 0.6).hex,
        "block-cursor-foreground": normal,
        "block-cursor-blurred-foreground": normal,
        "block-cursor-text-style": "none",
        "text-muted": muted,
        "foreground-muted": muted,
        "faint": faint,
        "text-disabled": faint,
    }


def readable(color: Color, pole: Color, ground_luminances: Sequence[float], least: float) -> Color:
    """Return the first colour on the way from `color` to `pole`, black or white, whose contrast to every ground is at
    least `least`; `pole` if there is none."""
    for step in range(_N_STEPS):
        candidate = color.blend(pole, step / _N_STEPS)
        own = luminance(candidate)
        if all(contrast(own, ground) >= least for ground in ground_luminances):
            return candidate
    return pole


def contrast(one: float, other: float) -> float:
    """Return the contrast of two luminances, 1 to 21 (WCAG 2.2, "contrast ratio")."""
    darker, lighter = sorted((one, other))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: Color) -> float:
    """Return the relative luminance, 0 to 1 (WCAG 2.2, "relative luminance")."""
    red, green, blue = (
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in color.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
