"""Whether this machine is quiet enough to be measured on, and what to tell a person where it is not.

Owns the look at the processors and the sentence. Knows nothing of what is measured.
"""

from __future__ import annotations

import click

__all__ = ["disturbance", "warn_if_busy"]

_LOOKS_FOR_S = 0.5
_MOST_PERCENT = 15.0  # of all processors: a desktop at rest has less, one busy program of two processors 50


def disturbance(busy_percent: float) -> str:
    """Return what to tell where that much of all processors is taken by others; an empty text for a quiet machine."""
    if busy_percent <= _MOST_PERCENT:
        return ""
    return (
        f"Other programs take {busy_percent:.0f} % of this machine's processors: what is measured now is slower than "
        "it would be, and the wrong setting may win. Measure again when it is quiet."
    )


def warn_if_busy() -> None:
    """Look for half a second what others do, and say on standard error if that will spoil what is measured."""
    import psutil

    if text := disturbance(psutil.cpu_percent(_LOOKS_FOR_S)):
        click.echo(f"Warning: {text}", err=True)
