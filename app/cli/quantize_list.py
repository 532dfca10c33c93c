"""`localllm quantize SRC --list`: what each type would make of a model, before one is chosen."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.terminal import printable

if TYPE_CHECKING:
    from app.library.type_rows import TypeRow
    from offload.bandwidth import ReadBandwidth

__all__ = ["list_types"]

_WIDTH_COLUMNS = 140  # where the output is no terminal


def list_types(source: Path, n_threads: int, *, wants_json: bool) -> None:
    """Print the table of all types for the model at `source`. Raises UserError as planning does."""
    from app.library.type_rows import type_rows
    from offload.bandwidth import measure_read_bandwidth

    bandwidth = measure_read_bandwidth(n_threads)
    rows = list(type_rows(source, bandwidth.bytes_per_s))
    if wants_json:
        measured = {"read_bytes_per_s": round(bandwidth.bytes_per_s), "threads": bandwidth.n_threads}
        click.echo(json.dumps({"source": str(source), **measured, "types": [asdict(row) for row in rows]}))
        return
    _print(rows, bandwidth)


def _print(rows: list[TypeRow], bandwidth: ReadBandwidth) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    table.add_column("type")
    for heading in ("bits/weight", "bytes", "perplexity", "tok/s at most"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        loss = "" if row.perplexity_loss is None else f"+{row.perplexity_loss:.4f}"
        figures = (f"{row.bits_per_weight:.2f}", f"{row.bytes:,}", loss, f"{row.max_tokens_per_s:.1f}")
        needs = " (needs an importance matrix)" if row.needs_imatrix else ""
        table.add_row(row.type, *figures, printable(row.description + needs))
    console = Console()
    console.print(table, width=console.width if console.is_terminal else _WIDTH_COLUMNS)
    click.echo(
        "perplexity: what llama.cpp measured that a type adds to the 6.23 of Llama-3-8B.\n"
        f"tok/s: what reading the weights at {bandwidth.bytes_per_s / 1e9:.1f} GB/s allows,"
        f" measured now with {bandwidth.n_threads} threads."
    )
