"""Tables of what the driver measured: one server's figures, or two side by side.

Run: `uv run python tests/bench/report.py A.json [B.json]`. With two files the column × says how many times better B is:
faster, or smaller.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from app.bench.measurement import Results, comparison, reasons, table

__all__ = ["show"]

_WIDTH_COLUMNS = 140  # also where the output is no terminal


def show(made: Table, *measured: Results) -> None:
    """Print `made`, and below it what could not be `measured`."""
    console = Console(width=_WIDTH_COLUMNS)
    console.print(made)
    for results in measured:
        for text in reasons(results):
            console.print(text, markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULTS.json")
    paths = parser.parse_args().results
    results = [Results.load(path) for path in paths]
    if len(results) == 1:
        show(table(results[0]), results[0])
    for other in results[1:]:
        show(comparison(results[0], other), results[0], other)


if __name__ == "__main__":
    main()
