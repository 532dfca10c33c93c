"""The questions of one chat about calls of tools, which wait for the person.

Owns which question is next. Independent of how it is shown, and of who runs the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from app.tools.approval import ApprovalQuestion, Decision


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    question: ApprovalQuestion
    answer: asyncio.Future[Decision]


class ApprovalQueue:
    """Implements `app.tools.approval.Approver`. Calls `on_change` when a question comes or goes; `news` is set when one
    comes."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.news = asyncio.Event()
        self._on_change = on_change
        self._waiting: tuple[_Waiting, ...] = ()

    @property
    def questions(self) -> tuple[ApprovalQuestion, ...]:
        """The questions that wait, the next one first."""
        return tuple(each.question for each in self._waiting)

    async def ask(self, question: ApprovalQuestion) -> Decision:
        """Return what the person decides. Cancelling it withdraws the question."""
        asked = _Waiting(question, asyncio.get_running_loop().create_future())
        self._waiting = (*self._waiting, asked)
        self.news.set()
        self._on_change()
        try:
            return await asked.answer
        finally:
            self._remove(asked)

    def answer(self, question: ApprovalQuestion, decision: Decision) -> bool:
        """Answer this very question; return False, and decide nothing, if it does not wait any more or does not take
        that decision."""
        asked = next((each for each in self._waiting if each.question is question), None)
        if asked is None or asked.answer.done() or decision not in question.decisions:
            return False
        asked.answer.set_result(decision)
        self._remove(asked)  # now, so that the next one is shown before the next key
        return True

    def _remove(self, asked: _Waiting) -> None:
        if asked in self._waiting:
            self._waiting = tuple(each for each in self._waiting if each is not asked)
            self._on_change()
