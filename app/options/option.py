"""One option: name, flags, type, default, limits and help, declared once as a field of a frozen dataclass.

`Settings` (`app.settings.settings`) and the options of jobs (`app.options.jobs`) are such dataclasses; `rows` reads
them. Imports neither click nor pydantic: the app parses its own flags at start-up, and must not wait for them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum, StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from quantizer.figures import format_number

MAX_TEXT = 4096  # characters of a text in a request for a job
_NO_NUL = r"^[^\x00]*$"  # a NUL cannot be part of a command line
_ROW = "option"  # the key of a row in a field's metadata


class Kind(Enum):
    """The type of a value; the text completes "It takes …"."""

    FLAG = "true or false"
    INTEGER = "a whole number"
    NUMBER = "a number"
    SIZE = "a size such as 500M or 2GiB"
    TEXT = "text"
    MODEL = "a model"
    PATH = "a path"
    TEXTS = "a list of texts"
    TABLE = "NAME=TEXT, separated by spaces"


class Effect(Enum):
    """When a new value of a setting takes effect."""

    AT_ONCE = "Takes effect at once"
    AT_LOAD = "Takes effect when a model is loaded with it, else at the next start of app and service"
    AT_START = "Takes effect at the next start of app and service"


class Group(StrEnum):
    """What an option belongs to; `serve` takes the settings of the first three."""

    MODEL = "Model and memory"
    SPECULATION = "Speed"
    SERVICE = "Service"
    CHAT = "Chats"
    APP = "Terminal app"
    JOB = "Commands"


class Section(StrEnum):
    """Where a person looks for a setting: in the docs and on the settings screen."""

    MODEL = "Model"
    SPEED = "Speed"
    SERVICE = "Service"
    APP = "App"
    PRIVACY = "Privacy"


_SECTIONS = {
    Group.MODEL: Section.MODEL,
    Group.SPECULATION: Section.SPEED,
    Group.SERVICE: Section.SERVICE,
    Group.CHAT: Section.APP,
    Group.APP: Section.APP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A row of the table.

    `help` is one sentence or a few. An integer or size is between `least` and `most`, a NUMBER strictly so; `choices`
    are all values, in any case. `check` raises UserError for a value that would be refused later: it runs where a
    person edits a setting. `resolve` makes a value of the command line independent of the current folder. `metavar`
    names the value in `--help`; `default_text` describes a default that depends on other things. A repeated flag adds
    to a `TEXTS` option, and is joined with `separator` where there is one; otherwise the last one counts. `plan_field`
    is the field of `PlanRequest` that asks for a plan, or a load, with another value. A secret is never shown. A
    setting has a `title`, else its name, and a `section`, else that of its group; `unset` is what 0 or an empty value
    means.
    """

    help: str
    name: str = ""
    kind: Kind = Kind.TEXT
    default: object = None
    flags: tuple[str, ...] = ()
    is_positional: bool = False
    metavar: str = ""
    default_text: str = ""
    choices: tuple[str, ...] = ()
    least: float = 0
    most: float = 2**31 - 1
    check: Callable[[str], object] | None = None
    resolve: Callable[[str], str] | None = None
    separator: str = ""
    group: Group = Group.JOB
    effect: Effect = Effect.AT_START
    plan_field: str = ""
    is_secret: bool = False
    title: str = ""
    section: Section | None = None
    unset: str = ""

    @property
    def shown_title(self) -> str:
        return self.title or self.name.replace("_", " ").capitalize()

    @property
    def shown_section(self) -> Section:
        return self.section or _SECTIONS[self.group]

    @property
    def flag(self) -> str:
        """The long flag, such as --kv-type."""
        return self.flags[0]

    @property
    def no_flag(self) -> str:
        """The flag that turns a setting off: --no-gpu."""
        return f"--no-{self.flag.removeprefix('--')}"

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    @property
    def is_repeatable(self) -> bool:
        return self.kind is Kind.TEXTS or bool(self.separator)

    def shown_default(self) -> str:
        """Return the default as help shows it, empty for none."""
        is_shown = self.default and not self.is_required and self.kind is not Kind.FLAG
        return self.default_text or (format_value(self.default) if is_shown else "")

    def choice_of(self, value: object) -> str | None:
        """Return the choice that `value` is, in any case, as it is declared; None for none."""
        return next((choice for choice in self.choices if choice.upper() == str(value).upper()), None)

    def range_error(self, value: object) -> str:
        """Return why `value`, of the right type, is refused, as the end of "It …"; empty where it is not."""
        if self.choices and isinstance(value, str) and value and self.choice_of(value) is None:
            return f"must be one of {', '.join(self.choices)}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return ""
        if self.kind is Kind.NUMBER:
            if self.least < value < self.most:
                return ""
            limits = f"must be more than {format_number(self.least)} and less than {format_number(self.most)}"
            return "must be finite" if math.isinf(self.most) else limits
        return "" if self.least <= value <= self.most else f"must be between {self.least:,} and {self.most:,}"


def option(default: Any, help: str, *, kind: Kind | None = None, **row: Any) -> Any:  # noqa: A002
    """Declare an option as a field of a dataclass, of the kind of its default unless one is named. The metadata limit
    the field in requests too: pydantic reads them by these names."""
    kinds = {
        bool: Kind.FLAG,
        int: Kind.INTEGER,
        float: Kind.NUMBER,
        str: Kind.TEXT,
        tuple: Kind.TEXTS,
        dict: Kind.TABLE,
    }
    if kind is None:
        kind = Kind.PATH if isinstance(default, Path) else kinds[type(default)]
    made = Option(help=help, kind=kind, default=default, **row)
    metadata = {_ROW: made, "description": help, **_limits(made)}
    if kind is Kind.TABLE:
        return field(default_factory=dict, hash=False, metadata=metadata)
    return field(default=default, metadata=metadata)


def argument(metavar: str, help: str, *, default: Any = MISSING, kind: Kind = Kind.TEXT) -> Any:  # noqa: A002
    """Declare an option that has no flag: it is given by its place."""
    return option(default, help, kind=kind, metavar=metavar, is_positional=True)


def like(row: Option, default: Any, **changes: Any) -> Any:
    """Declare an option that repeats `row` with another default."""
    made = replace(row, default=default, group=Group.JOB, **changes)
    return field(default=default, metadata={_ROW: made, "description": made.help, **_limits(made)})


def _limits(row: Option) -> dict[str, object]:
    match row.kind:
        case Kind.INTEGER | Kind.SIZE:
            return {"ge": row.least, "le": row.most}
        case Kind.NUMBER:
            return {"gt": row.least, "lt": row.most}
        case Kind.TEXT | Kind.MODEL | Kind.PATH if not isinstance(row.default, Path):
            least = {"min_length": 1} if row.is_required else {}
            return {"strict": True, "max_length": MAX_TEXT, "pattern": _NO_NUL, **least}
        case Kind.TEXTS:
            return {"max_length": 1000}
    return {}


@cache
def rows(table: type) -> Mapping[str, Option]:
    """Return the options that the dataclass `table` declares, by name and in its order."""
    return {item.name: named(item.name, item.metadata[_ROW]) for item in fields(table) if _ROW in item.metadata}


def named(name: str, row: Option) -> Option:
    """Return `row` with its name, and the flag that follows from it unless it has others."""
    flags = row.flags or (f"--{name.replace('_', '-')}",)
    return replace(row, name=name, flags=() if row.is_positional else flags)


def format_value(value: object) -> str:
    """Return a value as the environment writes it: items of a list are separated as paths are on this system."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, bool):
        return str(value).lower()
    return os.pathsep.join(value) if isinstance(value, tuple) else str(value)


def parse_flags(table: Iterable[Option], words: Iterable[str]) -> dict[str, object] | None:
    """Return the values that the command line `words` sets, as text, switches as bool and lists as tuples. None where
    it has anything but options of `table` with their values: click then parses it, and explains. Accepts what click
    accepts: --name VALUE, --name=VALUE, -n VALUE, -nVALUE."""
    by_flag = {flag: (row, True) for row in table for flag in row.flags}
    by_flag |= {row.no_flag: (row, False) for row, _ in by_flag.values() if row.kind is Kind.FLAG}
    found: dict[str, Any] = {}
    remaining = iter(words)
    for word in remaining:
        flag, has_value, value = word.partition("=") if word.startswith("--") else (word[:2], len(word) > 2, word[2:])
        row, is_on = by_flag.get(flag, (None, False))
        if row is None or (row.kind is Kind.FLAG and has_value):
            return None
        if row.kind is Kind.FLAG:
            found[row.name] = is_on
            continue
        text = value if has_value else next(remaining, None)
        if text is None:
            return None
        before = found.get(row.name) if row.is_repeatable else None
        if row.kind is Kind.TEXTS:
            found[row.name] = (*(before or ()), text)
        else:
            found[row.name] = f"{before}{row.separator}{text}" if before else text
    return found


def flag_words(table: Iterable[Option], values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the command line that sets `values`: options first, then -- and the positional ones. An option and its
    value are one word, so that a value that begins with a dash stays a value. A value that is absent, false, 0 or empty
    is left out: the command chooses it."""
    words: list[str] = []
    positional: list[str] = []
    for row in table:
        value = values.get(row.name)
        if row.is_positional:
            positional += [str(value)] if value else []
        elif isinstance(value, list | tuple):
            words += [f"{row.flag}={item}" for item in value]
        elif value:
            words.append(row.flag if value is True else f"{row.flag}={value}")
    return (*words, "--", *positional)


COMMON: Mapping[str, Option] = {
    name: named(name, row)
    for name, row in {
        "wants_json": Option(help="Print JSON.", kind=Kind.FLAG, default=False, flags=("--json",)),
        "assume_yes": Option(
            help="Don't ask for confirmation.",
            kind=Kind.FLAG,
            default=False,
            flags=("--yes", "-y"),
        ),
        "is_dry_run": Option(
            help="Show what would happen; change nothing.", kind=Kind.FLAG, default=False, flags=("--dry-run",)
        ),
        "output": Option(help="Output file.", kind=Kind.PATH, flags=("--output", "-o")),
        "limit": Option(help="Maximum number of results.", kind=Kind.INTEGER, least=1),
        "vram": Option(
            help="Plan for this GPU instead of yours; repeatable.",
            kind=Kind.TEXTS,
            default=(),
            metavar="NAME=SIZE[@SPEED]",
        ),
        "ram": Option(help="Plan for this memory, such as 16GiB@60GB/s.", metavar="SIZE[@SPEED]"),
        "system": Option(help="System prompt."),
        "max_tokens": Option(help="Maximum length of the answer in tokens.", kind=Kind.INTEGER, least=1),
        "temperature": Option(
            help="Temperature; 0 is greedy, by default the model's own.",
            kind=Kind.NUMBER,
            flags=("--temp",),
            least=-math.inf,
            most=math.inf,
        ),
        "seed": Option(help="Random seed.", kind=Kind.INTEGER, least=-math.inf, most=math.inf),
        "is_deterministic": Option(
            help="Same question and seed, same answer to the letter, on this machine: slower.",
            kind=Kind.FLAG,
            default=False,
            flags=("--deterministic",),
        ),
        "think": Option(
            help="Reasoning before the answer: off, low, medium, high, or a number of tokens.", metavar="LEVEL"
        ),
        "stats": Option(help="Print times and rates to stderr.", kind=Kind.FLAG, default=False),
    }.items()
}
