"""Questions before anything is taken away."""

from __future__ import annotations

import sys

import click

from quantizer.errors import UsageError

__all__ = ["confirm_removal", "yes_option"]

yes_option = click.option("--yes", "-y", "is_agreed", is_flag=True, help="Do not ask.")


def confirm_removal(question: str, *, is_agreed: bool) -> None:
    """Ask on stderr, unless it was agreed to on the command line, and leave with status 1 where the answer is no.

    Raises UsageError where nobody could answer.
    """
    if is_agreed:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("Nobody can be asked here.", "Give --yes if you mean it.")
    if not click.confirm(question, err=True):
        click.echo("Nothing was removed.", err=True)
        raise click.exceptions.Exit(1)
