"""The output of verbs: sizes and counts with three digits and a unit, lines, tables and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from app.common.terminal import printable
from app.protocol.codec import encode

if TYPE_CHECKING:
    from rich.table import Table


_WIDTH_COLUMNS = 140  # where the output is no terminal


def format_bytes(n_bytes: int) -> str:
    """Return a size, decimal: 4.92 GB."""
    return _scaled(n_bytes, (" B", " kB", " MB", " GB", " TB"))


def format_count(n: int) -> str:
    """Return a number of weights: 1.24B."""
    return _scaled(n, ("", "k", "M", "B", "T"))


def print_json(value: object) -> None:
    """Print `value` as one line of JSON."""
    click.echo(json.dumps(encode(value)))


def print_lines(lines: Iterable[str]) -> None:
    """Print `lines` without control characters, each as soon as it is known."""
    for line in lines:
        click.echo(printable(line))


def print_table(table: Table) -> None:
    """Print `table` as wide as the terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else _WIDTH_COLUMNS).print(table)


def _scaled(n: int, units: Sequence[str]) -> str:
    size, unit = float(n), units[0]
    for larger in units[1:]:
        if size < 999.5:  # what would be rounded to four digits
            break
        size, unit = size / 1000, larger
    return f"{size:.3g}{unit}"
