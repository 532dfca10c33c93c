"""Colours to choose from."""

from __future__ import annotations

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from tests.app.client.scripted_client import ScriptedClient
from tui.app import LocalllmApp
from tui.connection import ServiceConnection
from tui.settings.themes import HIGH_CONTRAST, theme_choices

AAA = 7.0


@pytest.mark.parametrize("ground", ["background", "surface", "panel"])
@pytest.mark.parametrize("ink", ["foreground", "primary", "secondary", "warning", "error", "success", "accent"])
def test_every_ink_of_high_contrast_stands_out_from_every_ground(ink: str, ground: str) -> None:
    colours = (Color.parse(getattr(HIGH_CONTRAST, name)) for name in (ink, ground))
    assert contrast(*colours) >= AAA


def test_muted_and_disabled_texts_stand_out_too() -> None:
    variables = HIGH_CONTRAST.to_color_system().generate()
    for name in ("text-muted", "text-disabled", "foreground-muted", "footer-description-foreground"):
        assert contrast(Color.parse(variables[name]), Color.parse(variables["panel"])) >= AAA, name


def test_plain_themes_come_first_and_none_is_missing() -> None:
    choices = theme_choices({*BUILTIN_THEMES, HIGH_CONTRAST.name})
    assert list(choices)[:3] == ["textual-dark", "textual-light", "high-contrast"]
    assert set(choices) == {*BUILTIN_THEMES, HIGH_CONTRAST.name}


def contrast(one: Color, other: Color) -> float:
    """The ratio of relative luminances that WCAG 2 defines."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: Color) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("value", "is_without"), [("1", True), ("", False)])
def test_no_color_takes_colours_away_unless_it_is_empty(monkeypatch, value, is_without):
    monkeypatch.setenv("NO_COLOR", value)
    assert LocalllmApp(ServiceConnection(ScriptedClient().opened, "guide")).no_color is is_without
