"""The form of an answer that must be JSON of a schema. Pure.

Owns that a form is checked once, when it is made. Independent of what may come before the JSON in an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from app.engine.grammar.gbnf import GbnfRules
from app.engine.grammar.json_grammar import schema_grammar, schema_rule


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """An answer that is JSON of `schema`, as parsed from JSON; `grammar` is the GBNF of that JSON alone.

    Raises RequestError as `schema_grammar` does.
    """

    schema: Any
    grammar: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grammar", schema_grammar(self.schema))

    def rule(self, rules: GbnfRules) -> str:
        """Return a rule of `rules` for the JSON."""
        return schema_rule(self.schema, rules)


ANY_OBJECT = JsonFormat({"type": "object"})
