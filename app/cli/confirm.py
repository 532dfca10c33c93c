"""The yes that a model needs which is slow here, or too large: asked at a terminal, or given with `--yes`.

Owns the question. Knows nothing of why a model needs it.

Questions before anything is taken away.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from app.settings.settings import Settings
from app.terminal import printable
from quantizer.errors import UnfitError, UsageError

__all__ = ["confirm_load", "confirm_removal", "with_unfit_policy"]


def with_unfit_policy(settings: Settings, *, assume_yes: bool, may_ask: bool) -> Settings:
    """Return `settings` that load an unfit model where that `assume_yes`; that ask where they `may_ask` at a terminal.

    What a person has set stays.
    """
    if assume_yes:
        return replace(settings, when_unfit="load")
    can_ask = may_ask and settings.when_unfit == "warn" and sys.stdin is not None and sys.stdin.isatty()
    return replace(settings, when_unfit="ask") if can_ask and sys.stderr.isatty() else settings


def confirm_load(error: UnfitError) -> bool:
    """Tell what is wrong with a model and ask whether to load it all the same; going away is a no."""
    click.echo(printable(str(error)), err=True)
    try:
        return click.confirm("Load it all the same?", err=True)
    except click.Abort:
        return False


def confirm_removal(question: str, *, assume_yes: bool) -> None:
    """Ask on stderr, unless it was agreed to on the command line, and leave with status 1 where the answer is no.

    Raises UsageError where nobody could answer.
    """
    if assume_yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("Nobody can be asked here.", "Give --yes if you mean it.")
    if not click.confirm(question, err=True):
        click.echo("Nothing was removed.", err=True)
        raise click.exceptions.Exit(1)
