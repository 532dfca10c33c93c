"""How one request's calls are written: a family and an offer together.

Owns what the other modules of this room make of the two. Knows nothing of prompts or dialects.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.service.reasoning import Thinking
from app.service.tools.call_grammar import call_grammar
from app.service.tools.families import Family
from app.service.tools.offer import Offer
from app.service.tools.splitter import CallSplitter

__all__ = ["Calling"]


@dataclass(frozen=True, slots=True)
class Calling:
    """A model of `family` to which `offer` was made."""

    family: Family
    offer: Offer

    def new_splitter(self) -> CallSplitter:
        """Return what tells the calls of one answer apart from its text."""
        return CallSplitter(self.family, self.offer)

    def grammar(self, thinking: Thinking) -> str:
        """Return the grammar of an answer that is a call, in GBNF; "" where it may be text.

        Raises RequestError for a schema that cannot be enforced.
        """
        return call_grammar(self.family, self.offer, thinking) if self.offer.must_call else ""
