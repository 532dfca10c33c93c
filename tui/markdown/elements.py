"""Rich's Markdown with our code blocks, boxes of tasks and rules that are lines. Import it when a text is drawn: Rich's
takes longer than the first frame can wait."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from rich.markdown import Heading, HorizontalRule, ListItem, Markdown, TableElement, TextElement
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table

from tui.markdown.code import Code, CodeRows, finished_code
from tui.markdown.document import TASK

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.console import Console, ConsoleOptions, RenderResult


class CodeElement(TextElement):
    """Code in a list or a quotation."""

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> CodeElement:
        return cls(finished_code(token.info, token.content), markdown.code_theme)

    def __init__(self, code: Code, theme: str) -> None:
        self._code, self._theme = code, theme

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = CodeRows(self._code, options.max_width, self._theme)
        for y in range(len(lines)):
            yield from lines[y]
            yield Segment.line()


class LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class LineElement(HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr")


class TaskItem(ListItem):
    """An item whose box, if it is a task, takes the place of its bullet."""

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> TaskItem:  # noqa: ARG003
        return cls(token.meta.get(TASK, ""))

    def __init__(self, box: str) -> None:
        super().__init__()
        self._box = box

    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rendered = iter(super().render_bullet(console, options))
        for bullet in islice(rendered, 1):
            is_box = self._box and isinstance(bullet, Segment)
            yield Segment(f" {self._box} ", console.get_style("markdown.item.bullet")) if is_box else bullet
        yield from rendered


class WholeTable(TableElement):
    """A table that breaks a word that is too long for its column; Rich cuts it off."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                for column in table.columns:
                    column.overflow = "fold"
            yield table


class FullMarkdown(Markdown):
    elements: ClassVar = {
        **Markdown.elements,
        **dict.fromkeys(("fence", "code_block"), CodeElement),
        "heading_open": LeftHeading,
        "hr": LineElement,
        "list_item_open": TaskItem,
        "table_open": WholeTable,
    }
