"""The options of `app.options` as click decorators.

An option that only one command has is declared with its verb.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from app.common.terminal import printable_line
from app.options.option import COMMON, Group, Kind, Option, like, rows
from app.options.option import option as declared
from app.settings.parsing import parse_byte_size
from app.settings.settings import SETTINGS, load_settings
from quantizer.system.errors import UsageError

if TYPE_CHECKING:
    from app.chat.conversation import ChatSettings
    from app.chat.tool_switches import RequestedTools

_Command = TypeVar("_Command", bound=Callable[..., Any])


_PARSERS: Mapping[Kind, Callable[[str], int | float]] = {
    Kind.INTEGER: int,
    Kind.NUMBER: float,
    Kind.SIZE: parse_byte_size,
}


class _Value(click.ParamType[Any]):
    """A number or size within the limits of its row."""

    def __init__(self, row: Option) -> None:
        self._row = row
        self.name = {Kind.INTEGER: "N", Kind.NUMBER: "NUMBER", Kind.SIZE: "SIZE"}[row.kind]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        parse = _PARSERS[self._row.kind]
        try:
            number = parse(value) if isinstance(value, str) else value
        except ValueError:
            self.fail(f"{value!r} is not {self._row.kind.value}.", param, ctx)
        if error := self._row.range_error(number):
            self.fail(f"{value} {error}.", param, ctx)
        return number


LOAD_ANYWAY = "Don't ask; load a model even if it doesn't fit."
BYTE_SIZE = _Value(Option(help="", kind=Kind.SIZE, least=1, most=10**15))


def complete_model(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the models of the library that begin with `begun`, or let the shell offer files where none does. Runs at
    every press of Tab. A name with control characters is not offered."""
    from app.library.local.resolve import available

    names = [ref.id for ref in available(load_settings()) if ref.id == printable_line(ref.id)]
    offered = [CompletionItem(name) for name in names if name.lower().startswith(begun.lower())]
    return offered or [CompletionItem(begun, type="file")]


def complete_file(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    return [CompletionItem(begun, type="file")]


def click_parameter(row: Option, *, is_hidden: bool = False) -> Callable[[_Command], _Command]:
    """Return the decorator of `row`. A setting that is not given is None."""
    attributes: dict[str, Any] = {"metavar": row.metavar or None, "required": row.is_required}
    if not row.is_required:
        attributes["default"] = row.default if row.group is Group.JOB else None
    if row.kind is Kind.MODEL:
        attributes["shell_complete"] = complete_model
    if row.is_positional:
        return click.argument(row.name, **attributes)
    default = row.shown_default()
    attributes |= {"help": f"{row.help}  [default: {default}]" if default else row.help, "hidden": is_hidden}
    flags = row.flags
    if row.kind is Kind.FLAG and row.group is not Group.JOB:
        flags = (f"{row.flag}/{row.no_flag}", *flags[1:])
    return click.option(*flags, row.name, **{**attributes, **_type_attributes(row)})


def _type_attributes(row: Option) -> dict[str, Any]:
    is_setting = row.group is not Group.JOB
    if row.kind is Kind.FLAG and is_setting:
        return {"is_flag": True, "default": None}
    if row.kind is Kind.FLAG:
        return {"is_flag": True}
    if row.kind in (Kind.INTEGER, Kind.NUMBER, Kind.SIZE):
        return {"type": _Value(row)}
    if row.choices:  # an empty default is none of the choices
        empty = None if is_setting else row.default
        choice = click.Choice(row.choices, case_sensitive=False)
        return {"type": choice, "default": None, "callback": lambda _context, _parameter, value: value or empty}
    if row.is_repeatable:
        return {"multiple": True, "callback": partial(_collected, row) if is_setting else None}
    return {"type": click.Path()} if row.kind is Kind.PATH else {}


def _collected(row: Option, _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> object:
    """Return the values of a repeated flag as its setting has them."""
    if not values:
        return None
    return row.separator.join(values) if row.separator else values


def _all_of(table: Iterable[Option], hidden: Iterable[Option] = ()) -> Callable[[_Command], _Command]:
    decorators = [*map(click_parameter, table), *(click_parameter(row, is_hidden=True) for row in hidden)]

    def decorate(command: _Command) -> _Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def options(*names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command the common options called `names`, in this order."""
    return _all_of([COMMON[name] for name in names])


def option(name: str, **changes: Any) -> Callable[[_Command], _Command]:
    """Return the decorator of the common option `name` with `changes` of its row."""
    return click_parameter(replace(COMMON[name], **changes))


def setting_options(*names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command an option for each setting of `names`; None means not given."""
    return _all_of([SETTINGS[name] for name in names])


def options_of(table: type, *, optional: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a command the options that the dataclass `table` declares. The command gets them as
    one object, before its other arguments. Those that are `optional` may be left out here, and are empty then."""
    own_rows = {
        name: replace(row, default="", metavar=f"[{row.metavar}]") if name in optional else row
        for name, row in rows(table).items()
    }

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_object(*outer: Any, **values: Any) -> Any:
            own = {name: values.pop(name) for name in own_rows}
            return command(*outer, table(**own), **values)

        return _all_of(own_rows.values())(with_object)

    return decorate


def all_settings(command: click.Command) -> None:
    """Add an option for each setting to `command`, out of its help."""
    for row in SETTINGS.values():
        click_parameter(row, is_hidden=True)(command)


_SHOWN_IN_CHATS = ("ctx", "kv_type", "projector", "rpc", "gpu", "threads", "host", "port", "connect", "api_key")


def chat_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` what a verb that chats takes: its first arguments are AnswerOptions and ToolOptions, then how to
    load the model, and where the engine is. It takes every other setting too, out of its help, which would not be read
    with forty options."""
    return _loading_options(options("stats")(options_of(ToolOptions)(command)))


def agent_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` what `chat_options` does, but for what only a terminal shows."""
    return _loading_options(options_of(ToolOptions)(command))


def _loading_options(command: Callable[..., Any]) -> Callable[..., Any]:
    own = {*_SHOWN_IN_CHATS, "model", "system"}  # which the verb declares itself
    others = [row for name, row in SETTINGS.items() if name not in own]
    loading = _all_of([SETTINGS[name] for name in _SHOWN_IN_CHATS], others)
    return options_of(AnswerOptions)(loading(option("assume_yes", help=LOAD_ANYWAY)(command)))


def service_options(command: _Command) -> _Command:
    """Give `command` the settings that a service heeds."""
    groups = (Group.MODEL, Group.SPECULATION, Group.SERVICE)
    return _all_of([row for group in groups for row in SETTINGS.values() if row.group is group])(command)


_COMMANDS = "commands"  # the server whose calls are allowed by their beginning only


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How to answer, unchecked; what is not given is the chat's or the model's own."""

    system: str | None = like(COMMON["system"], None)
    max_tokens: int | None = like(COMMON["max_tokens"], None)
    temperature: float | None = like(COMMON["temperature"], None)
    seed: int | None = like(COMMON["seed"], None)
    is_deterministic: bool = like(COMMON["is_deterministic"], False)
    think: str | None = like(COMMON["think"], None)

    def chat_settings(self) -> ChatSettings:
        """Return the settings of a chat that is answered so. Raises UsageError for an option that is not valid."""
        from app.chat.conversation import ChatSettings
        from app.chat.sampling_options import validate_options

        given = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed, "think": self.think}
        if self.is_deterministic:
            given["deterministic"] = "on"
        return ChatSettings(system=self.system or "", options=validate_options(given))


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Which tools the model may use, unchecked."""

    tools: tuple[str, ...] = declared(
        (),
        "Let the model use tools: files, commands, web, knowledge, and servers of mcp.json; separated by commas.",
        metavar="NAMES",
    )
    folders: tuple[str, ...] = declared(
        (), "Folder that tools read and write in; repeatable.", flags=("--folder",), metavar="PATH"
    )
    allowed: tuple[str, ...] = declared(
        (), "Do not ask for these servers or tools.", flags=("--allow",), metavar="NAMES"
    )
    allowed_commands: tuple[str, ...] = declared(
        (),
        "Do not ask for this command with exactly these arguments, in the first folder; repeatable.",
        flags=("--allow-command",),
        metavar="TEXT",
    )
    allowed_beginnings: tuple[str, ...] = declared(
        (),
        "Do not ask for this command with these and any further arguments, whatever they make it do; repeatable.",
        flags=("--allow-command-prefix",),
        metavar="TEXT",
    )
    max_rounds: int | None = declared(
        None, "Rounds of calls in an answer.", kind=Kind.INTEGER, least=1, most=1000, default_text="25"
    )

    def requested(self) -> RequestedTools:
        """Return what the options ask for. Raises UsageError for a folder that does not exist, a command that cannot be
        split into words, and for all commands at once."""
        from app.chat.tool_switches import RequestedTools

        allowed = _names(self.allowed)
        if any(name.partition("/")[0] == _COMMANDS for name in allowed):
            raise UsageError("Commands cannot be allowed all at once.", 'Name each: --allow-command "pytest -q".')
        commands, beginnings = (
            tuple(map(_command, texts)) for texts in (self.allowed_commands, self.allowed_beginnings)
        )
        folders = tuple(map(_folder, self.folders))
        return RequestedTools(_names(self.tools), folders, allowed, commands, beginnings, self.max_rounds)


def _command(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{text!r} cannot be split into words: {error}.", "Close its quotation marks.") from error
    if not words:
        raise UsageError("A command to allow is empty.", 'Give one: --allow-command "pytest -q".')
    return words


def _names(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for text in texts for name in text.replace(",", " ").split()))


def _folder(text: str) -> str:
    try:
        path = Path(text).expanduser().resolve()
        is_folder = path.is_dir()
    except (OSError, RuntimeError, ValueError):
        is_folder = False
    if not is_folder:
        raise UsageError(f"There is no folder {text}.", "Give one that exists.")
    return str(path)
