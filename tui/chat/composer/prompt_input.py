"""The prompt: a text field with a history of sent questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import Selection

from app.chat.presets import VARIABLE
from app.common.terminal import printable
from tui.chat.composer.shell_command import shell_command
from tui.chat.composer.templates import Templates, UnfilledError

if TYPE_CHECKING:
    from tui.chat.composer.composer import Composer


_PLACEHOLDER = "Ask something. Enter sends, @ attaches a file, / lists commands."
_BURST_S = 0.03  # from the key before: nobody presses Enter so soon, but a paste without its marks has it


class PromptInput(TextArea):
    """A text field of one to eight rows that recalls sent questions. Its `composer` handles some keys first."""

    KEYS: ClassVar[tuple[Binding, ...]] = (
        Binding("enter", "submit", "Send", id="prompt-send", tooltip="Send the question"),
        Binding("ctrl+j,shift+enter", "newline", "New line", id="prompt-newline",
                tooltip="Start a new line (some terminals: Ctrl+J only)"),
        Binding("tab", "accept", "Complete", id="prompt-complete", tooltip="Complete /command or @file"),
        Binding("ctrl+v", "paste", "Paste", id="prompt-paste",
                tooltip="Attach the picture in the clipboard; else paste"),
        Binding("up", "cursor_up", "Recall", id="prompt-recall",
                tooltip="On an empty line: recall an earlier question"),
    )  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = list(KEYS)

    @dataclass
    class Submitted(Message):
        """The user sent `text`; `is_typed` unless some of several lines may be pasted."""

        text: str
        is_typed: bool

    @dataclass
    class Commanded(Message):
        """The user typed a command for the shell."""

        command: str

    @dataclass
    class Withheld(Message):
        """What would be a command for the shell was pasted, or came at once with its Enter."""

        is_pasted: bool

    @dataclass
    class Unfilled(Message):
        """The user sent a text of the library in which a placeholder is not filled in; it is selected now."""

        error: UnfilledError

    @dataclass
    class Passed(Message):
        """The user pressed Tab where nothing is to be completed."""

    def __init__(self, composer: Composer) -> None:
        super().__init__(compact=True, highlight_cursor_line=False, placeholder=_PLACEHOLDER)
        self._composer = composer
        self._sent: list[str] = []
        self._n_back = 0
        self._has_paste = False
        self._commands: set[str] = set()  # lines that the person typed for the shell
        self._templates = Templates()
        self._last_key_s = 0.0
        self._is_burst = False

    async def _on_key(self, event: Key) -> None:
        """Handle each key before the next one: Textual would run cursor keys and Enter after letters already queued."""
        self._is_burst, self._last_key_s = event.time - self._last_key_s < _BURST_S, event.time
        if not self.text:
            self._has_paste = False
        drops = event.key == "backspace" and not self.text and self._composer.drop_last()
        bindings = () if drops else self._bindings.key_to_bindings.get(event.key, ())
        if drops or bindings:
            event.stop()
            event.prevent_default()
        for binding in bindings:
            await self.run_action(binding.action)

    async def _on_paste(self, event: Paste) -> None:
        """Insert a short text; the composer attaches a long one, files and, where the terminal pastes nothing, a
        picture."""
        self._has_paste = True
        if self._composer.paste(event.text) if event.text else self._composer.paste_clipboard():
            event.stop()
            event.prevent_default()

    @property
    def is_typed(self) -> bool:
        """Whether nobody else wrote the text: it is one line, which the user sees, or nothing was pasted."""
        return "\n" not in self.text.strip() or not self._has_paste

    @property
    def before_cursor(self) -> str:
        """The text of the row up to the cursor."""
        row, column = self.cursor_location
        before: str = self.document.get_line(row)[:column]
        return before if row == 0 else f"\n{before}"

    def put(self, text: str) -> None:
        self._has_paste = True  # it may be
        self.text = printable(text)
        self.move_cursor(self.document.end)

    def insert_pasted(self, text: str) -> None:
        self._has_paste = True
        self.insert(printable(text))

    def put_template(self, text: str) -> None:
        """Put a text of the library, and select its first {{placeholder}}; Enter asks for those that are left."""
        self.put(text)
        self._templates.add(self.text)
        self.select_placeholder()

    def select_placeholder(self, placeholder: str = "") -> bool:
        """Select the first {{placeholder}}, or this one, which typing replaces; return False if there is none."""
        if found := re.search(re.escape(placeholder), self.text) if placeholder else VARIABLE.search(self.text):
            row = self.text.count("\n", 0, found.start())
            column = found.start() - (self.text.rfind("\n", 0, found.start()) + 1)
            self.selection = Selection((row, column), (row, column + len(found[0])))
        return found is not None

    @property
    def n_before_cursor(self) -> int:
        """How many characters of the text are before the cursor."""
        row, column = self.cursor_location
        return column + sum(len(line) + 1 for line in self.document.lines[:row])

    def replace_before_cursor(self, n_characters: int, text: str) -> None:
        row, column = self.cursor_location
        self.replace(text, (row, column - n_characters), (row, column))

    def remember(self, sent: Sequence[str]) -> None:
        self._sent = [*map(printable, sent), *self._sent]

    def push_recall(self, text: str) -> None:
        if text:
            self._sent.append(text)
            self._n_back = 0

    def action_accept(self) -> None:
        if not self._composer.accept() and not self.select_placeholder():
            self.post_message(self.Passed())

    def action_submit(self) -> None:
        if self._composer.end_recording() or self._composer.accept(is_sending=True):
            return
        if command := shell_command(self.text):
            self._submit_command(command)
            return
        if (unfilled := self._templates.unfilled(self.text)) is not None:
            self.select_placeholder(unfilled.placeholder)
            self.post_message(self.Unfilled(unfilled))
            return
        if text := self.text.strip():
            is_typed = self.is_typed
            self._sent.append(text)
            self._n_back = 0
            self.text = ""
            self._has_paste = False
            self.post_message(self.Submitted(text, is_typed))

    def _submit_command(self, command: str) -> None:
        """Run only what the person typed: a page that puts a line and its end into the clipboard must not."""
        if self._has_paste or self._is_burst:
            self.post_message(self.Withheld(self._has_paste))
            return
        line = self.text.strip()
        self._commands.add(line)
        self._sent.append(line)
        self._n_back = 0
        self.text = ""
        self.post_message(self.Commanded(command))

    def action_paste(self) -> None:
        if not self._composer.paste_clipboard():
            self.paste_copied()

    def paste_copied(self) -> None:
        self._has_paste = True
        super().action_paste()

    def action_newline(self) -> None:
        self.insert("\n")

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up: in the completions, else on an empty field or during a recall to an earlier question."""
        if not (self._composer.move(-1) or (not self.text and self._composer.take_back()) or self._recall(1)):
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down: in the completions, else during a recall to a later question."""
        if not (self._composer.move(1) or self._recall(-1)):
            super().action_cursor_down(select)

    def _recall(self, n_earlier: int) -> bool:
        """Put a question sent earlier (or later) into the field, unless its text was changed; return whether it did."""
        is_recalling = self.text == (self._sent[-self._n_back] if self._n_back else "")
        if not (is_recalling and 0 <= self._n_back + n_earlier <= len(self._sent)):
            return False
        self._n_back += n_earlier
        self.put(self._sent[-self._n_back] if self._n_back else "")
        self._has_paste = self.text not in self._commands
        return True
