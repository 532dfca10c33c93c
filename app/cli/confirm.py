"""The confirmations of the command line: before a removal, and before loading a model that does not fit.

Owns the questions, and the policy for models that do not fit. Independent of why a model does not fit.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from app.common.terminal import printable
from app.protocol.errors import UnfitError
from app.settings.settings import Settings
from quantizer.system.errors import UsageError


def with_unfit_policy(settings: Settings, *, assume_yes: bool, may_ask: bool) -> Settings:
    """Return `settings` that load an unfit model with `assume_yes`, or ask first where they `may_ask` at a terminal.

    A policy other than the default is kept.
    """
    if assume_yes:
        return replace(settings, when_unfit="load")
    can_ask = may_ask and settings.when_unfit == "warn" and sys.stdin is not None and sys.stdin.isatty()
    return replace(settings, when_unfit="ask") if can_ask and sys.stderr.isatty() else settings


def confirm_load(error: UnfitError) -> bool:
    """Print why a model does not fit and ask whether to load it anyway; Ctrl-C means no."""
    click.echo(printable(str(error)), err=True)
    try:
        return click.confirm("Load it anyway?", err=True)
    except click.Abort:
        return False


def confirm_removal(question: str, *, assume_yes: bool) -> None:
    """Ask on stderr, unless `assume_yes`, and exit with status 1 on a no. Raises UsageError without a terminal."""
    if assume_yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("This needs a confirmation.", "Run it at a terminal, or with --yes.")
    if not click.confirm(question, err=True):
        click.echo("Nothing was removed.", err=True)
        raise click.exceptions.Exit(1)
