"""The forms that a client may demand of an answer: JSON of a schema, a text that a regular expression matches, or one
of several texts. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from app.engine.grammar.gbnf import GbnfRules, literal
from app.engine.grammar.pattern import whole_text_pattern
from app.protocol.errors import RequestError

MAX_CHOICES = 1000


class AnswerFormat(Protocol):
    """The form of an answer; `notices` say what of it is not enforced. `JsonFormat` is one."""

    @property
    def grammar(self) -> str:
        """The GBNF of such a text alone."""

    @property
    def notices(self) -> tuple[str, ...]: ...

    def rule(self, rules: GbnfRules) -> str:
        """Return a rule of `rules`, or GBNF in its place, for such a text."""


@dataclass(frozen=True, slots=True)
class PatternFormat:
    """A text that `expression` matches from begin to end. Raises RequestError for what no grammar has: lookaround,
    references to groups."""

    expression: str
    notices: tuple[str, ...] = ()
    gbnf: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gbnf", whole_text_pattern(self.expression))

    @property
    def grammar(self) -> str:
        return GbnfRules().text(self.gbnf)

    def rule(self, rules: GbnfRules) -> str:
        return rules.add(self.gbnf)


@dataclass(frozen=True, slots=True)
class ChoiceFormat:
    """One of several texts. Raises RequestError for none, or too many."""

    choices: tuple[str, ...]
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(self.choices) or not 1 <= len(self.choices) <= MAX_CHOICES:
            cause = f"There are {len(self.choices)} choices, or an empty one, for the answer."
            raise RequestError(cause, f"Give 1 to {MAX_CHOICES} texts.")

    @property
    def grammar(self) -> str:
        rules = GbnfRules()
        return rules.text(self.rule(rules))

    def rule(self, rules: GbnfRules) -> str:
        return rules.add(" | ".join(map(literal, dict.fromkeys(self.choices))))
