"""A question with all that came of it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical

from quantizer.errors import UserError
from tui.conversation import Ending, Exchange
from tui.widgets.answer import Answer
from tui.widgets.error_panel import ErrorPanel
from tui.widgets.question import Question

__all__ = ["Turn"]


class Turn(Vertical):
    """A question, its answer and, when there was one, the error; fulfils `tui.session.AnswerView`.

    `said` is what came of the question another time.
    """

    def __init__(self, question: str, said: Exchange | None = None) -> None:
        super().__init__()
        self._question = question
        self._said = said

    def compose(self) -> ComposeResult:
        yield Question(self._question)
        yield Answer(self._said)

    @property
    def answer(self) -> Answer:
        return self.query_one(Answer)

    async def write(self, text: str) -> None:
        """Append `text` to the answer."""
        await self.answer.write(text)

    async def finish(self, ending: Ending, error: UserError | None) -> None:
        """Say how the answer ended, and below it what went wrong; does nothing once the app has taken the turn away."""
        for answer in self.query(Answer):
            await answer.finish(ending)
        if error is not None and self.is_attached:
            await self.mount(ErrorPanel(error))

    async def fold(self) -> None:
        """Become cheap to lay out, when old."""
        await self.answer.fold()
