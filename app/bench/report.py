"""Tables of results: one server's figures, or two side by side. Text from servers is escaped for the terminal.

Owns the formatting of figures. Does not print.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from app.bench.measurement import Figure, Measurement, Results, Roofline
from app.terminal import printable

__all__ = ["as_json", "comparison", "line", "reasons", "table"]


def table(results: Results) -> Table:
    """Return the medians of one server, with the lowest and highest sample and the prediction."""
    made = _columns(results.label, "lowest–highest", "predicted", "")
    for item in results.measurements:
        made.add_row(item.work, item.case, _figure(item), _spread(item), _predicted(item), item.note)
    return made


def comparison(before: Results, after: Results) -> Table:
    """Return the medians of two servers for all cases of both, and how many times better `after` is."""
    made = _columns(before.label, "lowest–highest", after.label, "lowest–highest", "×", "")
    others = {item.key: item for item in after.measurements}
    for item in before.measurements:
        if other := others.get(item.key):
            gain = f"{other.gain_over(item):.2f}"
            made.add_row(
                item.work, item.case, _figure(item), _spread(item), _figure(other), _spread(other), gain, other.note
            )
    return made


def line(figure: Figure) -> str:
    """Return one figure on one line, for progress."""
    name = f"{figure.work} {figure.case}".rstrip()
    text = _figure(figure) if isinstance(figure, Measurement) else f"not measured. {figure.reason}"
    return printable(f"{name}: {text}").replace("\n", " ")


def reasons(results: Results) -> list[str]:
    """Return a line for each figure of a server that could not be measured."""
    return [f"{printable(results.label)}: {line(item)}" for item in results.unmeasured]


def as_json(measured: Sequence[Results], rooflines: Sequence[Roofline], seed: int) -> dict[str, Any]:
    """Return everything as one JSON object: samples with their medians, and the gain over the first server.

    A `gain` above 1 is better: faster, or smaller.
    """
    return {
        "seed": seed,
        "results": [_results(results, measured[0]) for results in measured],
        "rooflines": [asdict(roofline) | {"share": roofline.share} for roofline in rooflines],
    }


def _results(results: Results, first: Results) -> dict[str, Any]:
    compared = {item.key: item for item in first.measurements} if results is not first else {}
    rows = []
    for item in results.measurements:
        gain = {"gain": item.gain_over(compared[item.key])} if item.key in compared else {}
        rows.append({**asdict(item), "median": item.value, **gain})
    return {**asdict(results), "measurements": rows}


def _columns(*names: str) -> Table:
    made = Table("work", "case", box=None, pad_edge=False)
    for name in names[:-1]:
        made.add_column(printable(name), justify="right", no_wrap=True)
    made.add_column(names[-1])
    return made


def _figure(item: Measurement) -> str:
    return f"{item.value:.4g} {item.unit}"


def _predicted(item: Measurement) -> str:
    return "" if item.predicted is None else f"{item.predicted:.4g} ({item.predicted / item.value - 1:+.0%})"


def _spread(item: Measurement) -> str:
    return f"{min(item.samples):.4g}–{max(item.samples):.4g}" if len(item.samples) > 1 else ""
