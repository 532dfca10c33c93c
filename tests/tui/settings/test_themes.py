"""Colours to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import textual.css.stylesheet as textual_stylesheet
from textual.app import App
from textual.color import Color
from textual.css.errors import UnresolvedVariableError
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.theme import BUILTIN_THEMES

import tui.settings.themes as stylesheet_module
from app.connection import ServiceConnection
from tests.app.client.scripted_client import ScriptedClient
from tests.tui.conftest import InlineSession
from tui.app import LocalllmApp
from tui.settings.themes import HIGH_CONTRAST, CachedStylesheet, find_theme, theme_choices

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


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("dark", "textual-dark"),
        ("Light", "textual-light"),
        ("high contrast", "high-contrast"),
        ("gruvbox", "gruvbox"),
        ("solarized li", "solarized-light"),
        ("CATPPUCCIN mocha", "catppuccin-mocha"),
    ],
)
def test_a_theme_is_found_by_its_name_its_label_and_parts_of_its_name(typed: str, name: str) -> None:
    assert find_theme(typed, {*BUILTIN_THEMES, HIGH_CONTRAST.name}) == name


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


SOURCES = {f"source {number}": f".name-{number} {{ color: $accent; width: {number}; }}" for number in range(1, 100)}
RED, BLUE = {"accent": "#ff0000"}, {"accent": "#0000ff"}


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The sources that were parsed since the test began, where no earlier test parsed any."""
    sources: list[str] = []
    parse: Callable[..., Any] = textual_stylesheet.parse

    def record(scope: str, css: str, *others: Any, **options: Any) -> Any:
        sources.append(css)
        return parse(scope, css, *others, **options)

    stylesheet_module._parsed_with.cache_clear()
    monkeypatch.setattr(textual_stylesheet, "parse", record)
    yield sources
    stylesheet_module._parsed_with.cache_clear()


def filled(stylesheet: Stylesheet) -> Stylesheet:
    for name, css in SOURCES.items():
        stylesheet.add_source(css, ("", name))
    return stylesheet


def test_the_rules_are_those_of_textual_under_each_theme() -> None:
    ours, theirs = filled(CachedStylesheet(variables=RED)), filled(Stylesheet(variables=RED))
    assert ours.css == theirs.css
    for variables in (BLUE, RED):
        for stylesheet in (ours, theirs):
            stylesheet.set_variables(variables)
            stylesheet.reparse()
        assert ours.css == theirs.css


def test_a_source_is_parsed_once_for_a_theme(parsed: list[str]) -> None:
    stylesheet = filled(CachedStylesheet(variables=RED))
    stylesheet.parse()
    assert parsed == list(SOURCES.values())
    stylesheet.add_source(".more { width: 1; }", ("", "more"))
    stylesheet.reparse()
    assert parsed.pop() == ".more { width: 1; }"
    for variables in (BLUE, RED, BLUE):
        stylesheet.set_variables(variables)
        stylesheet.reparse()
    assert sorted(parsed) == sorted([*SOURCES.values(), *SOURCES.values(), ".more { width: 1; }"])


def test_a_wrong_source_is_refused_and_the_rules_stay(parsed: list[str]) -> None:
    stylesheet = filled(CachedStylesheet(variables=RED))
    before = stylesheet.css
    stylesheet.add_source(".wrong { width: $nothing; }", ("", "wrong"))
    with pytest.raises(UnresolvedVariableError):
        stylesheet.reparse()
    del stylesheet.source["", "wrong"]
    stylesheet.reparse()
    assert stylesheet.css == before


@pytest.mark.slow
async def test_the_next_app_of_a_process_parses_nothing_again(open_app: InlineSession, parsed: list[str]) -> None:
    n_parsed: list[int] = []
    for _ in range(2):
        async with open_app(ScriptedClient()) as user:
            await user.presses("f10")
            await user.sees("Settings")
        n_parsed.append(len(parsed))
    assert 0 < n_parsed[0] == n_parsed[1]


@pytest.mark.slow
async def test_styles_are_those_of_textual_whatever_was_focused_before(open_app: InlineSession) -> None:
    """On each screen, with the focus elsewhere, under another theme and back, which all use what is known of places."""
    async with open_app(ScriptedClient(), size=(120, 40)) as user:
        await user.sees("ready")
        for keys in (("h", "i"), ("f10",), ("down", "tab"), ("escape",), ("ctrl+p",), ("escape",), ("f5",), ("f10",)):
            await user.presses(*keys)
            assert_styled_as_by_textual(user.app)
        for theme in ("textual-light", "high-contrast", "textual-dark"):
            user.app.theme = theme
            await user.pilot.pause()
            assert_styled_as_by_textual(user.app)


def assert_styled_as_by_textual(app: App[Any]) -> None:
    """Compare all styles of the screen's widgets and their parts with those that Textual's stylesheet sets anew."""
    theirs = Stylesheet(variables=app.get_css_variables())
    theirs.source = dict(app.stylesheet.source)
    theirs.parse()
    for node in (app, *app.screen.walk_children(with_self=True)):
        ours = styles_of(node)
        node._css_styles.reset()
        theirs.apply(node)
        assert ours == styles_of(node), node


def styles_of(node: DOMNode) -> dict[str, dict[str, str]]:
    parts = {name: styles.base for name, styles in node._component_styles.items()}
    return {
        name: {key: str(value) for key, value in base.get_rules().items()}
        for name, base in {"": node.styles.base, **parts}.items()
    }


async def test_what_is_styled_again_matches_only_rules_that_look_at_other_widgets(
    open_app: InlineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    matched: list[tuple[DOMNode, RuleSet]] = []

    def record(rule: RuleSet, path: list[DOMNode]) -> Iterator[tuple[int, int, int]]:
        matched.append((path[-1], rule))
        return iter(())

    async with open_app(ScriptedClient()) as user:
        await user.sees("ready")
        app = user.app
        n_widgets = len({*app.screen.walk_children(with_self=True)})
        monkeypatch.setattr(CachedStylesheet, "_check_rule", staticmethod(record))
        app.update_styles(app.screen)
    asked_by_node: dict[DOMNode, set[str]] = {}
    for node, rule in matched:
        asked_by_node.setdefault(node, set()).update(rule.pseudo_classes)
    assert len(asked_by_node) < n_widgets / 4
    assert all(asked & Stylesheet._EXCLUDE_PSEUDO_CLASSES_FROM_CACHE for asked in asked_by_node.values())
