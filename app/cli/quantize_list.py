"""`localllm quantize SRC --list`: what each type would make of a model, before one is chosen."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.terminal import printable

if TYPE_CHECKING:
    from app.library.type_rows import TypeRow
    from offload.bandwidth import ReadBandwidth

__all__ = ["list_types"]

_NEEDS_MATRIX = "* "
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
    for heading in ("bits", "bytes", "loss", "tok/s"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        loss = "" if row.perplexity_loss is None else f"+{row.perplexity_loss:.4f}"
        figures = (f"{row.bits_per_weight:.2f}", f"{row.bytes:,}", loss, f"{row.max_tokens_per_s:.1f}")
        table.add_row(row.type, *figures, printable(f"{_NEEDS_MATRIX if row.needs_imatrix else ''}{row.description}"))
    Console(width=None if sys.stdout.isatty() else _WIDTH_COLUMNS).print(table)
    click.echo(
        "bits: of a weight. loss: what llama.cpp measured that a type adds to the\n"
        "perplexity of Llama-3-8B, 6.23.\n"
        f"tok/s: at most; what reading the weights at {bandwidth.bytes_per_s / 1e9:.1f} GB/s allows,\n"
        f"measured now with {bandwidth.n_threads} threads."
    )
    if any(row.needs_imatrix for row in rows):
        click.echo(f"{_NEEDS_MATRIX}needs an importance matrix: --imatrix auto gathers it.")
