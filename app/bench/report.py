"""Tables of what the driver measured: one server's figures, or two side by side.

Run: `uv run python tests/bench/report.py A.json [B.json]`. With two files the last column says how many times better B
is: faster, or smaller.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from measurement import Measurement, Results
from rich.console import Console
from rich.table import Table

__all__ = ["comparison", "show", "table"]

_WIDTH_COLUMNS = 120  # also where the output is no terminal


def table(label: str, measurements: Iterable[Measurement]) -> Table:
    """Return the medians of one server, with the lowest and highest sample."""
    made = _columns(label, "lowest", "highest", "")
    for item in measurements:
        low, high = min(item.samples), max(item.samples)
        made.add_row(item.work, item.case, _figure(item), f"{low:.4g}", f"{high:.4g}", item.note)
    return made


def comparison(before: Results, after: Results) -> Table:
    """Return the medians of two servers for all that both were measured by."""
    made = _columns(before.label, after.label, "×", "")
    others = {item.key: item for item in after.measurements}
    for item in before.measurements:
        if other := others.get(item.key):
            gain = f"{other.gain_over(item):.2f}"
            made.add_row(item.work, item.case, _figure(item), _figure(other), gain, other.note)
    return made


def _columns(*names: str) -> Table:
    made = Table("work", "case", box=None, pad_edge=False)
    for name in names[:-1]:
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column(names[-1])
    return made


def _figure(item: Measurement) -> str:
    return f"{item.value:.4g} {item.unit}"


def show(made: Table) -> None:
    """Print `made`."""
    Console(width=_WIDTH_COLUMNS).print(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULTS.json")
    paths = parser.parse_args().results
    results = [Results.load(path) for path in paths]
    if len(results) == 1:
        show(table(results[0].label, results[0].measurements))
    for other in results[1:]:
        show(comparison(results[0], other))


if __name__ == "__main__":
    main()
