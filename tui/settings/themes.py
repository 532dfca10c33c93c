"""How the app looks: the themes to choose from (Textual's, and one with high contrast), the look without colours, and a
stylesheet that parses each source of styles once and matches each kind of widget once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.cache import LRUCache
from textual.color import Color
from textual.css.model import RuleSet
from textual.css.styles import RulesMap
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.filter import LineFilter
from textual.theme import Theme
from textual.widget import Widget

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
_MAX_RULE_LISTS = 16  # one more with each screen that is shown for the first time
_MAX_PLACES = 4096
# The pseudo-classes that a place has: a widget's in `_pseudo_classes_cache_key` and whether it can be focused, and the
# app's. Not those that look at other widgets, as `first-child` does.
_PLACED = frozenset(
    {"hover", "focus", "blur", "can-focus", "disabled", "enabled", "dark", "light", "inline", "ansi", "nocolor"}
)
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


class _Matches:
    """What is known of one list of rules: which of them may apply to a widget with certain names, and which styles they
    gave to the widgets at a place of the tree."""

    def __init__(self, rules: tuple[RuleSet, ...]) -> None:
        self._positions = {rule: number for number, rule in enumerate(rules)}
        self._candidates: dict[frozenset[str], tuple[list[RuleSet], bool]] = {}
        self._places: dict[tuple[Any, ...], int] = {}
        self.styles: dict[int, RulesMap] = {}

    def candidates(self, names: frozenset[str], by_name: dict[str, list[RuleSet]]) -> tuple[list[RuleSet], bool]:
        """Return the rules whose last selector is among `names`, in their order, and whether the place of a widget says
        all that they ask for: their pseudo-classes are among those that a place has."""
        if (found := self._candidates.get(names)) is None:
            rules = sorted({rule for name in names for rule in by_name[name]}, key=self._positions.__getitem__)
            found = rules, all(rule.pseudo_classes <= _PLACED for rule in rules)
            self._candidates[names] = found
        return found

    def place_of(self, node: DOMNode, above: dict[DOMNode, int]) -> int | None:
        """Return a number for all that selectors can ask of `node` and of what it is in; none where that is no app.

        `above` has the numbers that are known already.
        """
        if (place := above.get(node)) is not None:
            return place
        outer: int | None = None
        states: Iterable[Any]
        if isinstance(node, App):
            states = frozenset(node.get_pseudo_classes())
        elif isinstance(node.parent, DOMNode) and (outer := self.place_of(node.parent, above)) is not None:
            can_focus = isinstance(node, Widget) and node.allow_focus()
            states = (can_focus, *node._pseudo_classes_cache_key)  # noqa: SLF001 - hovered, focused, disabled
        else:
            return None
        key = outer, type(node), node.id, node.classes, states
        place = above[node] = self._places.setdefault(key, len(self._places))
        return place

    def forget_if_many(self) -> None:
        """Forget places that were of widgets long gone, such as those with a message's own id."""
        if len(self._places) > _MAX_PLACES:
            self._places, self.styles = {}, {}


@lru_cache(_MAX_RULE_LISTS)
def _matches_of(rules: tuple[RuleSet, ...]) -> _Matches:
    """Return what is known of these rules; the apps of one process share it."""
    return _Matches(rules)


class _StylesOfPlace:
    """Answers Textual's look for styles that a node's siblings got before, with those of any node at such a place."""

    def __init__(self, styles: dict[int, RulesMap], place: int) -> None:
        self._styles, self._place = styles, place

    def get(self, _: tuple[Any, ...]) -> RulesMap | None:
        return self._styles.get(self._place)

    def __setitem__(self, _: tuple[Any, ...], rules: RulesMap) -> None:
        self._styles[self._place] = rules


class CachedStylesheet(Stylesheet):
    """A stylesheet that keeps its parsed rules while screens are added, and while the theme is another one, and the
    styles of each place in the tree of widgets.

    Textual 8.2.8 keeps the last 64 sources, of which the app has more, and forgets them all when a screen with its own
    styles is shown for the first time. At each change of the focus it goes through all rules for each widget below, and
    for each part of it that has colours of its own, and sets all styles again.
    """

    def __init__(self, *, variables: dict[str, str] | None = None) -> None:
        super().__init__(variables=variables)
        self._parse_cache = _parsed_with(frozenset(self._variables.items()))
        self._matches: tuple[dict[str, list[RuleSet]], _Matches] | None = None
        self._above: dict[DOMNode, int] | None = None  # places of this update; the next one may find other classes
        self._parts: WeakKeyDictionary[DOMNode, tuple[dict[int, RulesMap], int | None]] = WeakKeyDictionary()
        self._are_parts_placed = False
        self._applied: WeakKeyDictionary[DOMNode, tuple[RulesMap, int]] = WeakKeyDictionary()

    def set_variables(self, variables: dict[str, str]) -> None:
        self._parse_cache = LRUCache(1)  # the base class clears it; what other themes parsed stays
        super().set_variables(variables)
        self._parse_cache = _parsed_with(frozenset(variables.items()))

    def reparse(self) -> None:
        """Take what is parsed, and parse the rest."""
        self.parse()

    def update_nodes(self, nodes: Iterable[DOMNode], animate: bool = False) -> None:
        outer, self._above = self._above, {}
        try:
            super().update_nodes(nodes, animate)
        finally:
            self._above = outer

    def apply(self, node: DOMNode, *, animate: bool = False, cache: Any = None) -> None:
        """Show Textual only rules with one of the node's names, and the styles of its place where they are known."""
        by_name = self.rules_map  # made anew where sources were added
        if self._matches is None or self._matches[0] is not by_name:
            self._matches = by_name, _matches_of(tuple(self.rules))
        matches = self._matches[1]
        rules, above = self._rules, self._above
        if above is None:
            matches.forget_if_many()
        self._above = {} if above is None else above
        names = frozenset(by_name.keys() & node._selector_names)  # noqa: SLF001
        self._rules, is_placed = matches.candidates(names, by_name)
        place = matches.place_of(node, self._above)
        self._are_parts_placed &= is_placed and place is not None
        try:
            if is_placed and place is not None:
                cache = _StylesOfPlace(matches.styles, place)
            super().apply(node, animate=animate, cache=cache)  # and once more for each part of it with its own colours
        finally:
            self._rules, self._above = rules, above

    # A class method there, which nothing but a stylesheet calls.
    def replace_rules(self, node: DOMNode, rules: RulesMap, animate: bool = False) -> None:  # type: ignore[override]
        """Set the styles of a node, unless it got the same last and none of them was changed since.

        Textual would set each again. Some it keeps in another form than it is given (a layout as an object of its own),
        takes for changed, and lays the whole screen out for.
        """
        base = node.styles.base
        applied, n_updates = self._applied.get(node, (None, 0))
        if applied is rules and n_updates == base._updates:  # noqa: SLF001 - the only count of changes there is
            node.notify_style_update()
            return
        super().replace_rules(node, rules, animate)
        self._applied[node] = rules, base._updates  # noqa: SLF001

    def _process_component_classes(self, node: DOMNode) -> None:
        """Match the parts of a node, unless they were matched where it still is."""
        if type(node) is DOMNode or self._matches is None or self._above is None:
            return  # such a part itself
        place = self._matches[1].styles, self._above.get(node)
        known = self._parts.get(node)
        if known is not None and known[0] is place[0] and known[1] == place[1]:
            return
        self._are_parts_placed = place[1] is not None
        super()._process_component_classes(node)
        if self._are_parts_placed:
            self._parts[node] = place
        else:
            self._parts.pop(node, None)
