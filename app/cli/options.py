"""The table of options: each option that several verbs share is declared here once.

Owns names, types, defaults and help; an option that stands for a setting takes its help and limits from
`app.settings.descriptions`. Independent of what a verb does with a value. Options of one verb alone stay with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from app.cli.confirm import with_unfit_policy
from app.common.terminal import printable_line
from app.settings.descriptions import DESCRIPTIONS
from app.settings.parsing import is_loopback, parse_byte_size, parse_rpc_endpoints
from app.settings.settings import Settings, format_setting, load_settings
from quantizer.gguf.file_names import NO_PROJECTOR, PROJECTOR_TYPES

if TYPE_CHECKING:
    from app.library.machine_fit.planning import PlanningContext


_Command = TypeVar("_Command", bound=Callable[..., Any])


class _ByteSize(click.ParamType[int]):
    """A size such as 500M, 4.2GB or 2GiB, in bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ARG002
        return value if isinstance(value, int) else parse_byte_size(value)


BYTE_SIZE = _ByteSize()


def complete_model(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the models of the library that begin with `begun`, or let the shell offer files where none does.

    Runs at every press of Tab. A name with control characters is not offered.
    """
    from app.library.local.resolve import available

    names = [ref.id for ref in available(load_settings()) if ref.id == printable_line(ref.id)]
    offered = [CompletionItem(name) for name in names if name.lower().startswith(begun.lower())]
    return offered or [CompletionItem(begun, type="file")]


def _finite(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a temperature.")
    return value


# By the name of the parameter: flags, and what click takes beside them.
_SHARED: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {
    "wants_json": (("--json",), {"is_flag": True, "help": "Print JSON."}),
    "assume_yes": (("--yes", "-y"), {"is_flag": True, "help": "Do not ask; also load a model that does not fit."}),
    "is_dry_run": (("--dry-run",), {"is_flag": True, "help": "Report what would happen, change nothing."}),
    "is_overwriting": (("--overwrite",), {"is_flag": True, "help": "Replace existing files."}),
    "output": (("--output", "-o"), {"type": click.Path(path_type=Path), "help": "Output file."}),
    "limit": (("--limit",), {"show_default": True, "help": "Maximum number of results."}),
    "vram": (
        ("--vram",),
        {"multiple": True, "metavar": "NAME=SIZE[@SPEED]", "help": "Plan for this GPU instead of yours; repeatable."},
    ),
    "ram": (("--ram",), {"metavar": "SIZE[@SPEED]", "help": "Plan for this memory, such as 16GiB@60GB/s."}),
    "system": (("--system",), {"help": "System prompt."}),
    "max_tokens": (("--max-tokens",), {"type": click.IntRange(min=1), "help": "Maximum length of the answer."}),
    "temperature": (("--temp",), {"type": float, "callback": _finite, "help": "Temperature; 0 is greedy."}),
    "seed": (("--seed",), {"type": int, "help": "Random seed."}),
    "think": (
        ("--think",),
        {"metavar": "LEVEL", "help": "Thought before the answer: off, low, medium, high, or its number of tokens."},
    ),
    "stats": (("--stats",), {"is_flag": True, "help": "Print times and rates to stderr."}),
    "text": (("--text",), {"type": click.Path(path_type=Path), "help": "UTF-8 text.  [default: one that ships]"}),
    "window": (
        ("--ctx",),
        {"type": click.IntRange(min=0), "default": 0, "help": "Tokens per window.  [default: 512]"},
    ),
    "projector": (
        ("--projector",),
        {
            "type": click.Choice([*PROJECTOR_TYPES, NO_PROJECTOR], case_sensitive=False),
            "metavar": "|".join((*PROJECTOR_TYPES, NO_PROJECTOR)),
            "callback": lambda _context, _parameter, value: value or "",
            "help": "Type of the projector of a model that sees.  [default: F16]",
        },
    ),
    "chunks": (("--chunks",), {"type": click.IntRange(min=0), "default": 0, "help": "Number of windows; 0 = all."}),
}


def option(name: str, **changes: Any) -> Callable[[_Command], _Command]:
    """Return the decorator of the shared option `name`; `changes` replace what the table says of it."""
    flags, attributes = _SHARED[name]
    return click.option(*flags, name, **{**attributes, **changes})


def options(*names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command the shared options called `names`, in this order."""
    return _all_of([option(name) for name in names])


def setting_options(*names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command an option for each setting of `names`; None means not given."""
    return _all_of([_setting_option(name) for name in names])


def generation_options(command: _Command) -> _Command:
    """Give `command` what a verb that chats takes: how to answer, how to load the model, and where the engine is."""
    answering = options("system", "max_tokens", "temperature", "seed", "think")
    loading = setting_options(
        *("ctx", "kv_type", "projector", "rpc", "gpu", "threads", "host", "port", "connect", "api_key")
    )
    return answering(loading(options("assume_yes", "stats")(command)))


def _all_of(decorators: Sequence[Callable[[_Command], _Command]]) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def _setting_option(name: str) -> Callable[[_Command], _Command]:
    description, default = DESCRIPTIONS[name], getattr(Settings(), name)
    flag = f"--{name.replace('_', '-')}"
    text = f"{description.text}  [default: {format_setting(default)}]" if default else description.text
    attributes: dict[str, Any] = {"default": None, "help": text}
    flags = [flag]
    if isinstance(default, bool):
        flags = [f"{flag}/--no-{flag.removeprefix('--')}"]
    elif isinstance(default, int):
        attributes["type"] = click.IntRange(description.least, description.most)
    elif isinstance(default, tuple):
        attributes |= {"multiple": True, "callback": _none_if_empty}
    if name == "model":
        flags.append("-m")
        attributes["shell_complete"] = complete_model
    if name == "projector":
        flags.append("--mmproj")  # llama.cpp's name
        attributes["callback"] = _portable_projector
    if name == "rpc":
        attributes |= {"multiple": True, "callback": _joined}
    if description.metavar:
        attributes["metavar"] = description.metavar
    return click.option(*flags, name, **attributes)


def _none_if_empty(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> object:
    return values or None


def _portable_projector(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Return the choice of a projector for a process with another working folder: the path of a file is absolute."""
    from app.library.local.projectors import portable_choice

    return value and portable_choice(value)


def _joined(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> str | None:
    return ",".join(values) or None


def resolve_settings(model: str | None, flags: Mapping[str, object], *, assume_yes: bool) -> Settings:
    """Return the settings in force; with `connect` and no model the remote engine chooses: it may have no guide.

    Raises UsageError, and ModelFileError for a path that does not exist, before a service is started for it.
    """
    chosen = model or ("" if flags["connect"] else None)
    settings = load_settings({**flags, "model": chosen})
    if settings.model.endswith(".gguf") and not settings.connect and is_loopback(settings.host):
        from app.library.local.resolve import resolve

        resolve(settings.model, settings)
    return with_unfit_policy(settings, assume_yes=assume_yes, may_ask=True)


def announced_rpc_endpoints(settings: Settings) -> tuple[str, ...]:
    """Return the RPC servers of `settings`; warn on stderr that RPC is unencrypted. Raises UsageError."""
    from app.engine.load.machine import exposure_warning

    endpoints = parse_rpc_endpoints(settings.rpc)
    if warning := exposure_warning(endpoints):
        click.echo(warning, err=True)
    return endpoints


def requested_planning_context(settings: Settings, vram: Sequence[str] = (), ram: str | None = None) -> PlanningContext:
    """Return this machine, or the one that --vram and --ram describe, with its rates. Raises UsageError."""
    from app.engine.load.machine import survey
    from app.library.machine_fit.planning import local_planning_context, parse_machine, planning_context

    endpoints = announced_rpc_endpoints(settings)
    if not vram and ram is None:
        return local_planning_context(settings)
    return planning_context(settings, parse_machine(lambda: survey(endpoints, settings.cache_dir).machine, vram, ram))
