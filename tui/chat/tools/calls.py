"""A call of a tool in the transcript, its lines, and the question above the composer whether it may run.

Of the question: letters typed in the composer never decide anything: only the person brings the focus here, and
keys that arrive right after it, as in a burst of pasted text, still go to the composer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import chop_cells
from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Blur, Focus, Key, Paste
from textual.geometry import Size
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from app.chat.branches import TranscriptEntry
from app.tools.approval import ApprovalQuestion, Decision
from app.tools.display import (
    KEYS,
    StyledLine,
    call_lines,
    decision_text,
    plain_lines,
    progress_text,
    question_lines,
    question_title,
    result_text,
)
from app.tools.tool import ToolResult
from tui.design.words import side_by_side, wrapped

SIGNS = {False: "▸", True: "▾"}  # by whether it is open
_N_TAIL_LINES = 3
_FOR_PEOPLE = ("prose", "heading", "place")  # kinds of lines
_NO_RESULT = ToolResult(call_id="", tool="")


class StyledLines(Widget):
    """Lines of a diff, arguments or an output, drawn only where they are seen; a line that is wider than the widget
    goes on in the next row, what is for people between two words."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"styled-lines--{kind}" for kind in ("added", "removed", "place", "heading")
    }
    DEFAULT_CSS = """
    StyledLines { height: auto; width: 1fr; }
    StyledLines > .styled-lines--added { color: $text-success; }
    StyledLines > .styled-lines--removed { color: $text-error; }
    StyledLines > .styled-lines--place { color: $text-accent; }
    StyledLines > .styled-lines--heading { text-style: bold; }
    """

    def __init__(self, lines: Sequence[StyledLine] = (), *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._lines = tuple(lines)
        self._rows: tuple[StyledLine, ...] = ()
        self._folded_at = -1

    def show(self, lines: Sequence[StyledLine]) -> None:
        if (shown := tuple(lines)) != self._lines:
            self._lines, self._folded_at = shown, -1
            self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self._folded(width))

    def render_line(self, y: int) -> Strip:
        rows, width = self._folded(self.content_size.width), self.content_size.width
        row = rows[y] if y < len(rows) else StyledLine("")
        style = self.rich_style
        if row.kind not in ("plain", "prose"):
            style += self.get_component_rich_style(f"styled-lines--{row.kind}", partial=True)
        span = self.text_selection.get_span(y) if self.text_selection else None
        segments = [Segment(row.text, style)] if span is None else self._marked(row.text, style, *span)
        return Strip(segments).extend_cell_length(width, self.rich_style).apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        rows = self._folded(self.content_size.width)
        return selection.extract("\n".join(row.text for row in rows)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002
        self.refresh()

    def _marked(self, text: str, style: Style, start: int, end: int) -> list[Segment]:
        """Return the segments of a row of which the characters from `start` to `end` (-1: the last) are selected."""
        stop = len(text) if end == -1 else end
        selected = style + self.screen.get_component_rich_style("screen--selection", partial=True)
        return [Segment(text[:start], style), Segment(text[start:stop], selected), Segment(text[stop:], style)]

    def _folded(self, width: int) -> tuple[StyledLine, ...]:
        if width != self._folded_at:
            rows: list[StyledLine] = []
            for line in self._lines:
                fits = len(line.text) * 2 <= width  # no character is wider than two cells
                fold = wrapped if line.kind in _FOR_PEOPLE else chop_cells
                parts = () if fits else fold(line.text, max(width, 2)) or ("",)
                rows += [line] if fits else [StyledLine(part, line.kind) for part in parts]
            self._rows, self._folded_at = tuple(rows), width
        return self._rows


class FoldLine(Static):
    """The line of something that a click expands or collapses."""

    class Clicked(Message):
        """The user clicked on the line."""

    def on_click(self) -> None:
        self.post_message(self.Clicked())


class ToolCallView(Vertical):
    """A message of role "tool": its line, expanded by a click on it or by `toggle`."""

    def __init__(self, entry: TranscriptEntry) -> None:
        super().__init__()
        self._entry = entry
        self._is_open = False
        self._line = FoldLine(self._words(), markup=False)
        self._tail = StyledLines(classes="tail")
        self._details = StyledLines(classes="details")
        self._details.display = False
        self._show_tail()
        self.set_class(entry.is_joined, "-joined")

    def compose(self) -> ComposeResult:
        yield self._line
        yield self._tail
        yield self._details

    def show(self, entry: TranscriptEntry) -> None:
        self._entry = entry
        self._line.update(self._words(), layout=False)
        self._show_tail()
        self._show_details()
        self.set_class(entry.is_joined, "-joined")

    @on(FoldLine.Clicked)
    def toggle(self) -> None:
        self._is_open = not self._is_open
        self._line.update(self._words(), layout=False)
        self._show_details()
        self._details.display = self._is_open

    @property
    def _result(self) -> ToolResult:
        return self._entry.message.result or _NO_RESULT

    def _words(self) -> str:
        words = result_text(self._result, is_running=self._entry.is_running)
        if self._entry.live is not None:
            words = f"{words} · {progress_text(self._entry.live.progress)}"
        return f"{SIGNS[self._is_open]} {words}"

    def _show_tail(self) -> None:
        output = self._entry.live.output if self._entry.live is not None else ""
        lines = plain_lines(output.rstrip("\n"))[-_N_TAIL_LINES:] if output else ()
        self._tail.show(lines)
        self._tail.display = bool(lines)

    def _show_details(self) -> None:
        if self._is_open:
            arguments = self._entry.call.arguments if self._entry.call is not None else ""
            self._details.show(call_lines(arguments, self._entry.message.content, self._result))


ARM_S = 0.25  # longer than between the keys of a paste, shorter than a person needs to read a line
_SCROLLS = {"up": -1, "down": 1}
_ARGUMENTS_KEY = "o"


class DecisionLine(Widget):
    """The decisions with their keys, each whole in a row; a click is as good as the key."""

    _GAP = "  "

    @dataclass
    class Clicked(Message):
        """The person clicked on the decision with this key."""

        key: str

    def __init__(self) -> None:
        super().__init__()
        self._decisions: tuple[Content, ...] = ()

    def show(self, decisions: Iterable[Content]) -> None:
        self._decisions = tuple(decisions)
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self._rows(width))

    def render(self) -> Content:
        return Content("\n").join(Content(self._GAP).join(row) for row in self._rows(self.content_size.width))

    def _rows(self, width: int) -> list[list[Content]]:
        rows = side_by_side((each.cell_length for each in self._decisions), width, len(self._GAP))
        return [[self._decisions[index] for index in row] for row in rows]

    def action_decide(self, key: str) -> None:
        self.post_message(self.Clicked(key))


class ApprovalPanel(Vertical, can_focus=True):
    """Shows the first of the questions that wait; hidden without one. Its keys count once it `is_armed`, shortly after
    it got the focus."""

    @dataclass
    class Decided(Message):
        """The person answered `question`."""

        question: ApprovalQuestion
        decision: Decision

    @dataclass
    class Typed(Message):
        """The person typed or pasted what decides nothing: it is for the composer."""

        text: str

    @dataclass
    class Left(Message):
        """The person goes back to the composer."""

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self._questions: tuple[ApprovalQuestion, ...] = ()
        self._has_arguments = False  # whether those beside a diff are shown
        self.is_armed = False  # whether its keys decide
        self._focused_s = 0.0  # on the clock of events
        self._arming: Timer | None = None
        self._lines = StyledLines()
        self._keys = DecisionLine()

    def compose(self) -> ComposeResult:
        scroll = VerticalScroll(self._lines)
        scroll.can_focus = False
        yield scroll
        yield self._keys

    def show(self, questions: Sequence[ApprovalQuestion]) -> bool:
        """Show the first of `questions`; return whether that is another one than before, which nobody has seen yet."""
        former, self._questions = self._questions, tuple(questions)
        is_other = (former[:1] or (None,))[0] is not (self._questions[:1] or (None,))[0]
        if is_other:
            self._disarm()
            self.display = bool(self._questions)
            self._has_arguments = False
            self.query_one(VerticalScroll).scroll_home(animate=False)
        self._draw()
        return is_other

    def scroll_pages(self, n_pages: int) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.scroll_relative(y=n_pages * max(1, scroll.size.height - 1), animate=False)

    def on_focus(self, event: Focus) -> None:
        event.stop()
        self._disarm()
        self._focused_s = event.time
        self._arming = self.set_timer(ARM_S, self._arm)
        self._draw()

    def on_blur(self, event: Blur) -> None:
        event.stop()
        self._disarm()
        self._draw()

    def on_key(self, event: Key) -> None:
        if event.key in ("tab", "shift+tab"):
            self._take(event)
            self.post_message(self.Left())
        elif rows := _SCROLLS.get(event.key):
            self._take(event)
            self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)
        elif event.is_printable and event.character:
            self._take(event)
            self._decide_or_give(event.character, event.time)

    def on_paste(self, event: Paste) -> None:
        event.stop()
        self.post_message(self.Typed(event.text))

    @on(DecisionLine.Clicked)
    def _clicked(self, event: DecisionLine.Clicked) -> None:
        """Do what the key does, but for the click that brought the focus here."""
        event.stop()
        if self.is_armed:
            self._decide_or_give(event.key, event.time)

    def _decide_or_give(self, character: str, pressed_s: float) -> None:
        question, decision = self._questions[0] if self._questions else None, KEYS.get(character.lower())
        is_meant = self.is_armed and pressed_s - self._focused_s >= ARM_S  # a busy app gets to a burst's keys late
        if character.lower() == _ARGUMENTS_KEY and is_meant:
            self._has_arguments = not self._has_arguments
            self._draw()
        elif question is not None and decision in question.decisions and is_meant:
            self._disarm()  # at once: the next key is for no other question
            self.post_message(self.Decided(question, decision))
        else:
            self.post_message(self.Typed(character))

    def _arm(self) -> None:
        self.is_armed = self.has_focus and bool(self._questions)
        self._draw()

    def _disarm(self) -> None:
        self.is_armed = False
        if self._arming is not None:
            self._arming.stop()
            self._arming = None

    def _draw(self) -> None:
        if not self._questions:
            self._lines.show(())
            return
        question = self._questions[0]
        self._lines.show(question_lines(question, is_folded=not self._has_arguments))
        self.set_class(self.is_armed, "-armed")
        self.border_title = Content(question_title(question))
        more = f"{n_more} more after it · " if (n_more := len(self._questions) - 1) else ""
        lead = "" if self.has_focus else "Tab, then a key decides · "
        self.border_subtitle = f"{more}{lead}Esc denies it and stops the answer"
        labels = {key: Content(decision_text(each, question)).markup for key, each in KEYS.items()}
        self._keys.show(
            Content.from_markup(f"[@click=decide('{key}')][b]{key.upper()}[/b] {labels[key]}[/]")
            for key, decision in KEYS.items()
            if decision in question.decisions
        )

    @staticmethod
    def _take(event: Key) -> None:
        event.stop()
        event.prevent_default()
