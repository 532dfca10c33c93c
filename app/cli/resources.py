"""What verbs work with: settings, the machine, the model index, the running service, texts, and yes/no questions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from app.common.terminal import printable
from app.settings.parsing import is_loopback, parse_rpc_endpoints
from app.settings.settings import Settings, load_settings
from quantizer.system.errors import UsageError, UserError
from quantizer.system.files import explained, read_regular

if TYPE_CHECKING:
    from app.client.remote_engine import RemoteEngine
    from app.client.service_client import ServiceClient
    from app.library.local.index import Index
    from app.library.machine_fit.planning import PlanningContext
    from app.protocol.status import ServiceStatus
    from quantizer.gguf.header import Header


_PROBE_TIMEOUT_S = 5.0  # of which each port that may have the service gets 2
_DEFAULT_CTX = 512  # tokens per window, as llama-perplexity has it
_Answer = TypeVar("_Answer")


def resolve_settings(
    model: str | None, flags: Mapping[str, object], *, assume_yes: bool, may_ask: bool = True
) -> Settings:
    """Return the settings in force; with `connect` and no model the remote engine chooses: it may have no guide. Raises
    UsageError, and ModelFileError for a path that does not exist, before a service is started for it."""
    chosen = model or ("" if flags["connect"] else None)
    settings = load_settings({**flags, "model": chosen})
    if settings.model.endswith(".gguf") and not settings.connect and is_loopback(settings.host):
        from app.library.local.resolve import resolve

        resolve(settings.model, settings)
    return with_unfit_policy(settings, assume_yes=assume_yes, may_ask=may_ask)


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


async def load_named(client: ServiceClient | RemoteEngine, model: str | None, settings: Settings) -> str:
    """Load the model that is named, while a line shows how far it is, and return its id; "" where none is named. Raises
    UserError."""
    from app.cli.output.answer import LoadingLine
    from app.cli.prompts import confirm_load
    from app.client.launcher import load_model

    if not model:
        return ""
    show, when_unfit = LoadingLine().show, settings.when_unfit
    return (await load_model(client, model, show, when_unfit=when_unfit, confirm_load=confirm_load)).id


@contextmanager
def open_index(cache_dir: Path) -> Iterator[Index]:
    """Open the index, and print on stderr when it was rebuilt, or cannot be written."""
    from app.library.local.index import Index
    from app.settings.folders import cache_warning

    with Index(cache_dir) as index:
        try:
            yield index
        finally:
            if index.was_damaged:
                click.echo("The index of models was damaged and was rebuilt.", err=True)
            if index.problem:
                warning = cache_warning(cache_dir) or f"The index in {cache_dir} cannot be written: {index.problem}."
                click.echo(printable(warning), err=True)


def ask_service(call: Callable[[ServiceClient], Awaitable[_Answer]]) -> _Answer:
    """Return the answer of the running service. Raises UserError, ServiceError where none runs."""
    from app.client.launcher import running_service

    async def answer() -> _Answer:
        async with running_service(load_settings()) as client:
            return await call(client)

    return asyncio.run(answer())


async def probe_service(settings: Settings) -> tuple[str, ServiceStatus] | None:
    """Return address and status of the service that commands with `settings` use: the one to connect to, or the running
    one of this user and data folder. None where none runs or something else answers there."""
    from app.client.launcher import service_of

    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S), service_of(settings) as client:
            return client.base_url, await client.status()
    except (UserError, TimeoutError, ValueError, KeyError, TypeError):
        return None


def show_notices(client: ServiceClient | RemoteEngine) -> None:
    for notice in client.notices:
        click.echo(printable(notice), err=True)


def show_kept(client: ServiceClient | RemoteEngine, *, wants_json: bool) -> None:
    """Say at a terminal that the service stays, when it was started for this command."""
    if client.kept_for and not wants_json and sys.stderr is not None and sys.stderr.isatty():
        duration = "" if client.kept_for.startswith("-") else f" {client.kept_for}"
        click.echo(f"The service stays{duration} for the next command; `localllm stop` ends it.", err=True)


def resolve_model(name: str) -> tuple[Path, Header]:
    """Return the file that the model `name` means and its header, validated. Raises UserError."""
    from app.library.local.resolve import resolve
    from quantizer.gguf.validation import validate_gguf

    path = resolve(name, load_settings()).path
    return path, validate_gguf(path)


def window_size(header: Header, requested: int) -> int:
    """Return the tokens per window: `requested`, else the default or what the model was trained on, if less."""
    trained = header.integer(f"{header.architecture}.context_length") or _DEFAULT_CTX
    return requested or min(_DEFAULT_CTX, trained)


def shipped(name: str) -> Path:
    """Return the path of a text in assets/text."""
    return Path(str(files("assets") / "text" / name))


def read_text(path: Path) -> str:
    """Return what `path` holds. Raises UsageError when it cannot be read or is not UTF-8."""
    try:
        with explained(f"{path} cannot be read", "Check the path.", UsageError):
            text = read_regular(path).decode("utf-8")
        return text.replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text.", "Save it as UTF-8.") from error


def with_unfit_policy(settings: Settings, *, assume_yes: bool, may_ask: bool) -> Settings:
    """Return `settings` that load an unfit model with `assume_yes`, or ask first where they `may_ask` at a terminal. A
    policy other than the default is kept."""
    if assume_yes:
        return replace(settings, when_unfit="load")
    can_ask = may_ask and settings.when_unfit == "warn" and sys.stdin is not None and sys.stdin.isatty()
    return replace(settings, when_unfit="ask") if can_ask and sys.stderr.isatty() else settings


def confirm_removal(question: str, *, assume_yes: bool) -> None:
    """Ask on stderr, unless `assume_yes`, and exit with status 1 on a no. Raises UsageError without a terminal."""
    if assume_yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("This needs a confirmation.", "Run it at a terminal, or with --yes.")
    if not click.confirm(question, err=True):
        click.echo("Nothing was removed.", err=True)
        raise click.exceptions.Exit(1)
