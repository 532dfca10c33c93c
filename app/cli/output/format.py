"""The format of sizes and counts, with three digits and a unit, and of `--json`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from app.protocol.codec import encode

__all__ = ["format_bytes", "format_count", "print_json"]


def format_bytes(n_bytes: int) -> str:
    """Return a size, decimal: 4.92 GB."""
    return _scaled(n_bytes, (" B", " kB", " MB", " GB", " TB"))


def format_count(n: int) -> str:
    """Return a number of weights: 1.24B."""
    return _scaled(n, ("", "k", "M", "B", "T"))


def print_json(value: object) -> None:
    """Print `value` as one line of JSON."""
    import click  # the terminal app imports this module, and has no use for it

    click.echo(json.dumps(encode(value)))


def _scaled(n: int, units: Sequence[str]) -> str:
    size, unit = float(n), units[0]
    for larger in units[1:]:
        if size < 999.5:  # what would be rounded to four digits
            break
        size, unit = size / 1000, larger
    return f"{size:.3g}{unit}"
