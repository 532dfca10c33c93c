"""The yes that a model needs which is slow here, or too large: asked at a terminal, or given with `--yes`.

Owns the question. Knows nothing of why a model needs it.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from app.settings import Settings
from app.terminal import printable
from quantizer.errors import UnfitError

__all__ = ["agrees", "with_consent"]


def with_consent(settings: Settings, *, is_agreed: bool, may_ask: bool) -> Settings:
    """Return `settings` that load an unfit model where that `is_agreed`; that ask where they `may_ask` at a terminal.

    What a person has set stays.
    """
    if is_agreed:
        return replace(settings, when_unfit="load")
    can_ask = may_ask and settings.when_unfit == "warn" and sys.stdin is not None and sys.stdin.isatty()
    return replace(settings, when_unfit="ask") if can_ask and sys.stderr.isatty() else settings


def agrees(error: UnfitError) -> bool:
    """Tell what is wrong with a model and ask whether to load it all the same; going away is a no."""
    click.echo(printable(str(error)), err=True)
    try:
        return click.confirm("Load it all the same?", err=True)
    except click.Abort:
        return False
