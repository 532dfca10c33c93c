"""What a format of tool calls is: the text around names and arguments, and how a call is recognised. Pure.

Which model family has which is the table in `formats`. Independent of streams and grammars.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.engine.grammar.call_rules import numbered
from app.service.tools.argument_forms import ArgumentForm, JsonForm

EXAMPLE_ID = "a1b2c3d4e"  # in a syntax, the part of a call's id that differs from answer to answer
OBJECT_AHEAD = r"\s*\[?\s*(?=\{)"  # a call as an object that contains its name; several may form a list
_JSON = JsonForm()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """The text around a call's name and arguments in training. `between` is None where only one call is possible.

    CALL_NUMBER and CALL_ORDINAL in it count the calls of an answer. A header may also end as in `other_heads`: pairs of
    a text in the place of `before_name` and one in that of `before_arguments`.
    """

    before_first: str = ""
    before_name: str
    before_arguments: str
    after_arguments: str
    between: str | None = None
    after_last: str = ""
    other_heads: tuple[tuple[str, str], ...] = ()

    def begin(self, name: str) -> str:
        """Return the text of a call of `name` up to its arguments."""
        return f"{self.before_name}{name}{self.before_arguments}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a family writes its calls. Its templates contain all `marks`.

    A call begins with one of `openings`, or with the answer itself where that begins with one of the characters `bare`;
    then comes `header`, up to the arguments. A header without a name is followed by an object with the name. `fillers`
    may follow, and `listed` is how the next call of a list begins. `turn` is how a turn ends and the model's begins,
    for a template that leaves the latter out.
    """

    name: str
    marks: tuple[str, ...]
    openings: tuple[str, ...]
    header: re.Pattern[str] = field(default=re.compile(OBJECT_AHEAD))
    separators: tuple[str, ...] = ()
    fillers: tuple[str, ...] = ()
    bare: str = ""
    listed: re.Pattern[str] = field(default=re.compile(r"\{"))
    arguments: ArgumentForm = _JSON
    turn: tuple[str, str] = ("", "")
    syntax: CallSyntax

    @property
    def tags(self) -> tuple[str, ...]:
        """Texts that may be special tokens of these models, and must be visible for calls to be parsed."""
        return (*self.openings, *self.separators, *self.fillers, *self.arguments.tags)

    def continued(self, prompt: str) -> str:
        """Return `prompt` with a turn of the model, where the template ends one behind results and begins none."""
        end_of_turn, begin_of_turn = self.turn
        return f"{prompt}{begin_of_turn}" if end_of_turn and prompt.endswith(end_of_turn) else prompt

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return `calls`, names with arguments, as models write them."""
        syntax = self.syntax
        one_by_one = [
            f"{numbered(syntax.begin(name), number)}{self.arguments.written(arguments)}{syntax.after_arguments}"
            for number, (name, arguments) in enumerate(calls)
        ]
        return f"{syntax.before_first}{(syntax.between or '').join(one_by_one)}{syntax.after_last}"
