"""Finding a text in the open chat: the row to type it in, and the way from match to match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from app.chat.branches import TranscriptEntry
from tui.chat.transcript.transcript import Place, Transcript

_MAX_MATCHES = 9_999


@dataclass(frozen=True, slots=True)
class Match:
    """The occurrence `number`, from 0 on, in the text of a message."""

    message_id: int
    number: int


def matches_in(entries: Sequence[TranscriptEntry], text: str) -> tuple[Match, ...]:
    """Return where `text` is, in any case of its letters, whether its message is mounted or not."""
    return tuple(islice(_matches(entries, text.lower()), _MAX_MATCHES)) if text.strip() else ()


def _matches(entries: Sequence[TranscriptEntry], text: str) -> Iterator[Match]:
    for entry in entries:
        for number in range(entry.message.content.lower().count(text)):
            yield Match(entry.message.id, number)


class FindInput(Input):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,down,f3", "step(1)", "Next", show=False, id="find-next", tooltip="Go to the next match"),
        Binding("shift+enter,up,shift+f3", "step(-1)", "Previous", show=False, id="find-previous",
                tooltip="Go to the previous match"),
    ]  # fmt: skip

    @dataclass
    class Stepped(Message):
        """The user wants another match: the next one, or the previous one for -1."""

        n_matches: int

    def action_step(self, n_matches: int) -> None:
        self.post_message(self.Stepped(n_matches))


class FindBar(Horizontal):
    """One row over `transcript`, which it moves; hidden until it is opened."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__()
        self._transcript = transcript
        self._input = FindInput(placeholder="Find in this chat", compact=True)
        self._count = Static(markup=False)
        self._matches: tuple[Match, ...] = ()
        self._current: int | None = None
        self._came_from: Place | None = None
        self.display = False

    def compose(self) -> ComposeResult:
        yield self._input
        yield self._count

    def open(self, text: str = "") -> None:
        """Show the row, with `text` or what was sought last, and give it the keys."""
        if not self.display:
            self._came_from = self._transcript.place
            self.display = True
        if text:
            self._input.value = text
        self.screen.set_focus(self._input)
        self._input.action_select_all()
        self._search()

    async def close(self) -> bool:
        """Hide the row and go back to where the user was; return False if it was not shown."""
        if not self.display:
            return False
        self.display = False
        self._matches, self._current = (), None
        self.screen.clear_selection()
        await self._transcript.return_to(self._came_from)
        return True

    @on(Input.Changed)
    def _search(self) -> None:
        """Look for what is typed; the last match is the nearest to the prompt."""
        self._matches = matches_in(self._transcript.entries, self._input.value)
        self._current = None
        self._show_count()

    @on(FindInput.Stepped)
    async def _step(self, event: FindInput.Stepped) -> None:
        event.stop()
        former = self._matches[self._current] if self._current is not None else None
        self._matches = matches_in(self._transcript.entries, self._input.value)  # an answer may have grown
        if not self._matches:
            self._current = None
        elif former in self._matches:
            self._current = (self._matches.index(former) + event.n_matches) % len(self._matches)
        else:
            self._current = 0 if event.n_matches > 0 else len(self._matches) - 1
        self._show_count()
        if self._current is not None:
            match = self._matches[self._current]
            await self._transcript.show_match(match.message_id, self._input.value, match.number)

    def _show_count(self) -> None:
        n_matches = len(self._matches)
        if not self._input.value.strip():
            words = ""
        elif not n_matches:
            words = "not in this chat"
        else:
            words = f"{n_matches:,} found" if self._current is None else f"{self._current + 1:,} of {n_matches:,}"
        self._count.update(f"{words}  Enter next · Shift+Enter previous · Esc back".strip())
