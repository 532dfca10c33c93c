"""The help (F1): the keys and commands of a screen in sections, with a filter, and the pages of the guide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.css.styles import RulesMap
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.common.help_topics import TOPICS, read_topic
from tui.commands import Command
from tui.design.key_names import format_keys
from tui.design.search_box import SearchBox

_EVERYWHERE, _PAGES = "Everywhere", "Guide pages"
_GAP = "  "  # between the columns
_LABEL_CELLS, _MARGIN_CELLS = 26, 12  # of a key and a slash word; beside the panel
_NONE_FOUND = "Nothing matches. Esc clears the filter."


@dataclass(frozen=True, slots=True)
class HelpRow:
    """A key, a slash word, or both, with what it does; `topic` is the page of the guide that Enter opens."""

    label: str
    text: str
    topic: str = ""


HelpSections = Mapping[str, Sequence[HelpRow]]


def help_rows(bindings: Iterable[Binding], commands: Iterable[Command], custom: Mapping[str, str]) -> Iterator[HelpRow]:
    """Yield the keys of widgets, then the commands; `custom` are the user's keys by command."""
    for binding in bindings:
        yield HelpRow(format_keys(binding.key), binding.tooltip)
    for command in commands:
        slash = f"/{command.slash} {command.argument}".rstrip() if command.slash else ""
        yield HelpRow("  ".join(filter(None, (format_keys(command.bound_keys(custom)), slash))), command.help_text)


def with_common_rows(sections: HelpSections) -> dict[str, tuple[HelpRow, ...]]:
    """Return the sections of a screen, with the palette and the pages of the guide."""
    palette = HelpRow("Ctrl+P", "Search commands, models, chats and settings")
    found = {title: tuple(rows) for title, rows in sections.items() if rows}
    found[_EVERYWHERE] = (*found.get(_EVERYWHERE, ()), palette)
    found[_PAGES] = tuple(HelpRow(f"/help {topic}", text, topic) for topic, text in TOPICS.items())
    return found


class HelpScreen(ModalScreen[None]):
    """Sections of keys and commands; Enter opens a page of the guide."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q", "dismiss(None)", "Close", id="help-close", tooltip="Go back"),
        Binding("slash", "search", "Filter", id="help-search", tooltip="Filter the help"),
    ]

    def __init__(self, sections: HelpSections) -> None:
        super().__init__()
        self._sections = with_common_rows(sections)

    def compose(self) -> ComposeResult:
        with Vertical(id="help") as panel:
            panel.border_title = "Keys and commands"
            panel.border_subtitle = "Enter opens a page · Esc closes"
            yield SearchBox("filter")
            yield OptionList(markup=False, compact=True)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self._draw("")

    def on_resize(self) -> None:
        self._draw(self.query_one(SearchBox).value)

    def action_search(self) -> None:
        self.query_one(SearchBox).focus()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._draw(event.value)

    @on(SearchBox.Left)
    def _left(self) -> None:
        self.query_one(OptionList).focus()

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        topic = event.option_id or ""
        if topic in TOPICS:
            self.app.push_screen(GuidePage(read_topic(topic)))

    def _draw(self, wanted: str) -> None:
        words = wanted.casefold().split()
        n_label = min(_LABEL_CELLS, max((self.size.width - _MARGIN_CELLS) // 3, 6))
        options: list[Option] = []
        for title, rows in self._sections.items():
            found = [row for row in rows if all(word in f"{title} {row.label} {row.text}".casefold() for word in words)]
            if found:
                options += [Option(Content(), disabled=True)] if options else []
                options.append(Option(Content.styled(title, "bold $text-accent"), disabled=True))
                options += [Option(_TwoColumns(row, n_label), row.topic or None) for row in found]
        listed = self.query_one(OptionList)
        listed.clear_options()
        listed.add_options(options or [Option(Content.styled(_NONE_FOUND, "$text-muted"), disabled=True)])
        listed.highlighted = next((at for at, option in enumerate(options) if not option.disabled), None)


class _TwoColumns(Visual):
    """A row of the help, whose long texts go on below their beginning. Rich's table took a third of a second to lay 100
    such rows out, and lists ask for their height several times before they are drawn."""

    def __init__(self, row: HelpRow, n_label: int) -> None:
        self._row, self._n_label = row, n_label
        self._width, self._content = 0, Content()

    def _wrapped(self, width: int) -> Content:
        if width != self._width:
            labels = Content.styled(self._row.label, "bold").wrap(self._n_label)
            texts = Content(self._row.text).wrap(max(width - self._n_label - len(_GAP), 1))
            lines = zip_longest(labels, texts, fillvalue=Content())
            padded = ((label.pad_right(self._n_label - label.cell_length), _GAP, text) for label, text in lines)
            self._width, self._content = width, Content("\n").join(Content.assemble(*line) for line in padded)
        return self._content

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:  # noqa: ARG002 - Textual's
        return container_width

    def get_height(self, rules: RulesMap, width: int) -> int:
        return self._wrapped(width).get_height(rules, width)

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        return self._wrapped(width).render_strips(width, height, style, options)


class GuidePage(ModalScreen[None]):
    """A page of the user's guide, as Markdown; scrollable, closed with Esc."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q", "dismiss(None)", "Close", id="guide-close", tooltip="Go back")
    ]

    def __init__(self, page: str) -> None:
        super().__init__()
        self._page = page

    def compose(self) -> ComposeResult:
        from rich.markdown import Markdown  # a tenth of a second, and only here

        with VerticalScroll() as panel:
            panel.border_subtitle = "Esc closes"
            yield Static(Markdown(self._page, hyperlinks=False))
