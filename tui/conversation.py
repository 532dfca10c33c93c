"""What was said in this chat, and what of it the model is told.

Pure: knows nothing of widgets, services or disks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

__all__ = ["Conversation", "Ending", "Exchange"]

Role = Literal["system", "user", "assistant"]


class Ending(Enum):
    """How an answer ended."""

    COMPLETE = "complete"
    CUT = "cut"  # at the limit of tokens
    STOPPED = "stopped"  # by the person
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and what came of it; the answer may be partial or empty unless COMPLETE."""

    question: str
    answer: str
    ending: Ending


@dataclass(slots=True)
class Conversation:
    """Exchanges in order, under one system prompt."""

    system: str = ""
    exchanges: list[Exchange] = field(default_factory=list)

    def turns(self, question: str) -> list[tuple[Role, str]]:
        """Return role and text of every turn up to `question`. Questions without any answer are left out."""
        turns: list[tuple[Role, str]] = [("system", self.system)] if self.system else []
        for exchange in self.exchanges:
            if exchange.answer:
                turns += [("user", exchange.question), ("assistant", exchange.answer)]
        return [*turns, ("user", question)]

    @property
    def last_answer(self) -> str:
        """The latest answer with any text, or an empty text."""
        return next((exchange.answer for exchange in reversed(self.exchanges) if exchange.answer), "")

    def take_back(self) -> str | None:
        """Forget the last exchange and return its question, to be asked again."""
        return self.exchanges.pop().question if self.exchanges else None
