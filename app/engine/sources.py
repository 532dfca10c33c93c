"""Where drafts come from: what the drafter asks of a source.

Every source proposes single tokens, hence point masses: kept just where they equal the sample, they leave the
distribution of the output as it was, at any temperature. Knows nothing of how drafts are cut and verified.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

from app.engine.draft import Draft
from app.engine.sequence import Sequence
from app.engine.speculation import Evidence, Hope

__all__ = ["DraftSource", "Question"]


@dataclass(frozen=True, slots=True)
class Question:
    """How may this sequence go on, in at most `n_tokens`?"""

    sequence: Sequence
    n_tokens: int


class DraftSource(Protocol):
    """Something that proposes how answers may go on."""

    @property
    def name(self) -> str: ...

    @property
    def evidence(self) -> Evidence: ...

    def hope(self, sequence: Sequence, n_most: int, n_answers: int) -> Hope:
        """Return what a draft of `n_most` tokens would be worth while `n_answers` answers run."""
        ...

    def n_guessed(self, sequence: Sequence) -> int:
        """Return how many tokens to ask for where no draft pays, only to learn from them."""
        ...

    def propose(self, questions: Many[Question]) -> list[Draft]:
        """Return a draft for each question, empty where there is none."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Let go of a sequence that has ended (it has a finish reason then) or is about to forget some of its text."""
        ...
