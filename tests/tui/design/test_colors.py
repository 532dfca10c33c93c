"""Text can be read on every theme."""

from __future__ import annotations

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from app.connection import ServiceConnection
from tests.app.client.scripted_client import ScriptedClient
from tui.app import LocalllmApp
from tui.design.colors import FAINT_CONTRAST, GROUNDS, TEXT_CONTRAST, contrast, luminance
from tui.settings.themes import HIGH_CONTRAST

LEAST = {
    **dict.fromkeys(
        ("foreground", "bright", "text-muted", "text-accent", "text-primary", "text-secondary"), TEXT_CONTRAST
    ),
    **dict.fromkeys(("text-success", "text-warning", "text-error", "block-cursor-foreground"), TEXT_CONTRAST),
    **dict.fromkeys(("faint", "text-disabled"), FAINT_CONTRAST),
}
OWN_COLOURS = [name for name in BUILTIN_THEMES if not name.startswith("ansi-")]


def variables_of(theme: str) -> dict[str, str]:
    app = LocalllmApp(ServiceConnection(ScriptedClient().opened, "guide"))
    app.theme = theme
    return app.get_css_variables()


@pytest.mark.parametrize("theme", OWN_COLOURS)
def test_every_text_stands_out_from_every_ground_of_every_theme(theme: str) -> None:
    variables = variables_of(theme)
    background = Color.parse(variables["background"])
    grounds = {name: luminance(background + Color.parse(variables[name])) for name in GROUNDS}
    too_faint = {
        (name, ground): round(found, 2)
        for name, least in LEAST.items()
        for ground, its in grounds.items()
        if (found := contrast(luminance(Color.parse(variables[name])), its)) < least
    }
    assert not too_faint


@pytest.mark.parametrize("theme", OWN_COLOURS)
def test_weights_of_text_stay_apart_on_every_theme(theme: str) -> None:
    variables = variables_of(theme)
    ground = luminance(Color.parse(variables["background"]))
    bright, muted, faint = (
        contrast(luminance(Color.parse(variables[name])), ground) for name in ("bright", "text-muted", "faint")
    )
    assert bright > muted > faint


@pytest.mark.parametrize("theme", ["ansi-dark", "ansi-light"])
def test_colours_of_the_terminal_are_left_to_it(theme: str) -> None:
    variables = variables_of(theme)
    assert variables["bright"] == variables["foreground"] == "ansi_default"


def test_high_contrast_keeps_its_own_cursor() -> None:
    assert variables_of(HIGH_CONTRAST.name)["block-cursor-background"] == "#ffff00"


@pytest.mark.parametrize(
    ("one", "other", "ratio"), [("#000", "#fff", 21.0), ("#777", "#fff", 4.48), ("#123", "#123", 1.0)]
)
def test_contrast_is_that_of_the_standard(one: str, other: str, ratio: float) -> None:
    assert contrast(luminance(Color.parse(one)), luminance(Color.parse(other))) == pytest.approx(ratio, abs=0.01)
