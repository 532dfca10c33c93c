"""The form for the options of a chat's answers: what each is now and who decided it, the usual ones first, with a
search, and a name to save them as a preset."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import DescendantFocus, Key
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

from app.chat.conversation import Scalar
from app.chat.sampling_options import (
    BASIC_OPTIONS,
    FILE_OPTIONS,
    MORE_OPTIONS,
    OPTIONS_BY_NAME,
    default_text,
    unusual_text,
)
from app.common.terminal import printable, printable_line
from app.protocol.sampling import ModelSampling
from quantizer.system.errors import UserError
from tui.design.search_box import SearchBox

_PRESET = "preset"
_ABOUT_PRESET = "save these and the system prompt as a preset"
_ABOUT_MORE = "Enter shows or hides them."
_ABOUT_EMPTY = "A field that is empty uses the value in it, of the model, its makers, the catalogue or localllm."


class TextField(TextArea):
    """A field of up to four rows for a long text, which may be pasted; Enter applies the form, Ctrl+J starts a row."""

    @dataclass
    class Submitted(Message):
        """The user pressed Enter."""

    def __init__(self, text: str, name: str, default: str) -> None:
        super().__init__(printable(text), compact=True, highlight_cursor_line=False, id=name, placeholder=default)
        self.cursor_blink = False

    async def _on_key(self, event: Key) -> None:
        row, last_row = self.cursor_location[0], self.document.line_count - 1
        if event.key == "enter":
            self.post_message(self.Submitted())
        elif event.key == "ctrl+j":
            self.insert("\n")
        elif event.key == "up" and row == 0:
            self.screen.focus_previous()
        elif event.key == "down" and row == last_row:
            self.screen.focus_next()
        else:
            return
        event.stop()
        event.prevent_default()


class _Fields(VerticalScroll, inherit_bindings=False):
    """The fields; the cursor keys go from one to the next instead of scrolling."""


class _Row(Horizontal):
    """An option with its field; bright where it is changed."""

    def __init__(self, name: str, meaning: str, default: str, value: str) -> None:
        super().__init__(classes="option -changed" if value else "option")
        self.option = name
        self.meaning = meaning
        self._default = default
        self._value = value

    def compose(self) -> ComposeResult:
        yield Static(self.option, markup=False, classes="name")
        if self.option in FILE_OPTIONS:
            yield TextField(self._value, self.option, self._default)
        else:
            field = Input(printable_line(self._value), compact=True, id=self.option, placeholder=self._default)
            field.cursor_blink = False
            yield field

    @property
    def is_changed(self) -> bool:
        return bool(self._text.strip())

    def matches(self, words: str) -> bool:
        """Return whether all `words` are in its name or its meaning."""
        text = f"{self.option.replace('_', ' ')} {self.option} {self.meaning}".lower()
        return all(word in text for word in words.lower().split())

    @property
    def _text(self) -> str:
        field = self.query_one(f"#{self.option}")
        return field.text if isinstance(field, TextArea) else field.value if isinstance(field, Input) else ""

    @property
    def about(self) -> str:
        """What it does; of a number that nobody uses, that."""
        option = OPTIONS_BY_NAME.get(self.option)
        try:
            value = None if option is None or self.option in FILE_OPTIONS else option.parse(self._text.strip())
        except UserError:  # which applying it reports
            value = None
        return unusual_text({} if value is None else {self.option: value}) or self.meaning

    @on(Input.Changed)
    @on(TextArea.Changed)
    def _changed(self) -> None:
        self.set_class(self.is_changed, "-changed")


class _More(Static, can_focus=True):
    """The row that unfolds the options which few people change."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter,space,right,left", "unfold", "More", id="options-more", tooltip="Show or hide the other options"
        ),
    ]

    @dataclass
    class Toggled(Message):
        """The user unfolds or folds them."""

    def action_unfold(self) -> None:
        self.post_message(self.Toggled())

    def on_click(self) -> None:
        self.action_unfold()


class OptionsScreen(ModalScreen[None]):
    """Asks until `take` accepts the texts by option and the preset's name (may be empty) without a UserError, or the
    user cancels. A field that is empty shows the value of `sampling`, and whose it is."""

    CSS_PATH = "chat.tcss"
    AUTO_FOCUS = f"#{BASIC_OPTIONS[0]}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="options-cancel", tooltip="Cancel without changes"),
        Binding("up", "app.focus_previous", "Field above", id="options-up", tooltip="Go to the field above"),
        Binding("down", "app.focus_next", "Field below", id="options-down", tooltip="Go to the field below"),
        Binding("ctrl+f", "find", "Find", id="options-find", tooltip="Find an option by its name or meaning"),
    ]

    def __init__(
        self,
        options: Mapping[str, Scalar],
        sampling: ModelSampling | None,
        take: Callable[[Mapping[str, str], str], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._values = {name: str(value) for name, value in options.items()}
        self._sampling = sampling
        self._take = take
        self._is_unfolded = False

    def compose(self) -> ComposeResult:
        with Vertical(id="options") as panel:
            panel.border_title = "Options of the answers"
            panel.border_subtitle = "Enter applies · Ctrl+F finds · Esc cancels"
            yield SearchBox("find an option")
            with _Fields(id="fields", can_focus=False):
                yield from map(self._row, BASIC_OPTIONS)
                yield _More(markup=False, id="more")
                for title, names in MORE_OPTIONS.items():
                    yield Static(title, markup=False, classes="part-title")
                    yield from map(self._row, names)
                yield _Row(_PRESET, _ABOUT_PRESET, "a name, to use them in other chats", "")
            yield Static("", markup=False, id="about", classes="row-about")
            yield Static("", markup=False, id="fault")

    def on_mount(self) -> None:
        self._show_rows()

    def _row(self, name: str) -> _Row:
        option = OPTIONS_BY_NAME[name]
        return _Row(name, option.meaning, default_text(name, self._sampling), self._values.get(name, ""))

    def _show_rows(self) -> None:
        """Show the rows that are searched for; without a search the basic and the changed ones, unfolded all."""
        words = self.query_one(SearchBox).value.strip()
        rows = list(self.query(_Row))
        for row in rows:
            is_basic = row.option in BASIC_OPTIONS or row.option == _PRESET
            row.display = row.matches(words) if words else is_basic or row.is_changed or self._is_unfolded
        for title in self.query(".part-title"):
            title.display = self._is_unfolded and not words
        more, n_hidden = self.query_one(_More), sum(not row.display for row in rows)
        more.display = not words
        more.update("▾ less" if self._is_unfolded else f"▸ {n_hidden} more options")

    def action_find(self) -> None:
        self.query_one(SearchBox).focus()

    @on(_More.Toggled)
    def _toggled(self, event: _More.Toggled) -> None:
        event.stop()
        self._is_unfolded = not self._is_unfolded
        self._show_rows()

    @on(Input.Changed)
    def _searched(self, event: Input.Changed) -> None:
        if isinstance(event.input, SearchBox):
            event.stop()
            self._show_rows()
        else:
            self._show_meaning()

    @on(SearchBox.Left)
    def _left_search(self, event: SearchBox.Left) -> None:
        event.stop()
        shown = [row for row in self.query(_Row) if row.display]
        if shown:
            shown[0].query_one(f"#{shown[0].option}").focus()

    @on(DescendantFocus)
    def _show_meaning(self) -> None:
        """Explain the field that has the focus now: of a burst of keys the events come in any order."""
        focused = self.focused
        row = next((node for node in focused.ancestors if isinstance(node, _Row)), None) if focused else None
        about = row.about if row is not None else _ABOUT_EMPTY
        self.query_one("#about", Static).update(_ABOUT_MORE if isinstance(focused, _More) else about)

    @on(Input.Submitted)
    @on(TextField.Submitted)
    def _submitted(self, event: Message) -> None:
        event.stop()
        fields = [field for field in self.query(Input) if not isinstance(field, SearchBox)]
        texts = {str(field.id): field.value for field in fields}
        self._offer(texts | {str(field.id): field.text for field in self.query(TextField)})

    @work(exclusive=True)
    async def _offer(self, texts: Mapping[str, str]) -> None:
        fault = self.query_one("#fault", Static)
        fault.update("…")
        try:
            await self._take(texts, texts[_PRESET].strip())
        except UserError as error:
            fault.update(printable(str(error)))
        else:
            self.dismiss()
