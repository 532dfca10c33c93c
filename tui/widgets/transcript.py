"""The conversation on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from quantizer.errors import UserError
from tui.conversation import Exchange
from tui.widgets.error_panel import ErrorPanel
from tui.widgets.greeting import Greeting
from tui.widgets.notice import Notice
from tui.widgets.turn import Turn

__all__ = ["Transcript"]

# Turns that stay live Markdown; older ones are folded, far enough up for nobody to see it happen.
N_LIVE_TURNS = 8
# Each costs about 25 ms to draw: a long chat must not hold up the first frames.
N_RESTORED_TURNS = 20


class Transcript(VerticalScroll):
    """Turns and notices in order. It stays at the end while text comes, until the person scrolls away."""

    can_focus = False

    def compose(self) -> ComposeResult:
        yield Greeting()

    def on_mount(self) -> None:
        self.anchor()

    async def add_turn(self, question: str) -> Turn:
        """Append a question with an answer that waits, and go to it."""
        await self.query("Transcript > Greeting, Transcript > ErrorPanel").remove()
        turn = Turn(question)
        await self.mount(turn)
        self.anchor()
        for old in list(self.query(Turn))[-N_LIVE_TURNS - 1 : -N_LIVE_TURNS]:
            await old.answer.fold()
        return turn

    async def restore(self, exchanges: Sequence[Exchange]) -> None:
        """Put the end of what was said another time before everything else, folded, and go to it."""
        if not exchanges:
            return
        await self.query("Transcript > Greeting").remove()
        shown = exchanges[-N_RESTORED_TURNS:]
        n_earlier = len(exchanges) - len(shown)
        notices = [Notice(f"Earlier questions of this chat, not shown: {n_earlier}.")] if n_earlier else []
        await self.mount_all([*notices, *(Turn(exchange.question, exchange) for exchange in shown)], before=0)
        self.anchor()

    async def drop_last_turn(self) -> None:
        """Take away the last question and what came of it."""
        if turns := self.query(Turn):
            await turns.last().remove()

    async def add_notice(self, text: str) -> None:
        """Append a quiet line."""
        await self.mount(Notice(text))

    async def add_error(self, error: UserError) -> None:
        """Append an error that belongs to no question, in place of an earlier one of the kind."""
        await self.query("Transcript > ErrorPanel").remove()
        await self.mount(ErrorPanel(error))

    async def clear(self) -> None:
        """Become an empty chat."""
        await self.remove_children()
        await self.mount(Greeting())
