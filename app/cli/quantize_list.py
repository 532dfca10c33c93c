"""`localllm quantize SRC --list`: what each type would make of a model, before one is chosen."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.terminal import printable

if TYPE_CHECKING:
    from offload.bandwidth import ReadBandwidth

__all__ = ["list_types"]

_WIDTH_COLUMNS = 140  # where the output is no terminal


@dataclass(frozen=True, slots=True)
class _Row:
    """One type for this model; `max_tokens_per_s` is what reading its weights from memory leaves room for here."""

    type: str
    bits_per_weight: float
    bytes: int
    perplexity_loss: float | None
    max_tokens_per_s: float
    needs_imatrix: bool
    description: str


def list_types(source: Path, n_threads: int, *, wants_json: bool) -> None:
    """Print the table of all types for the model at `source`. Raises UserError as planning does."""
    from offload.bandwidth import measure_read_bandwidth

    bandwidth = measure_read_bandwidth(n_threads)
    rows = _rows(source, bandwidth)
    if wants_json:
        measured = {"read_bytes_per_s": round(bandwidth.bytes_per_s), "threads": bandwidth.n_threads}
        click.echo(json.dumps({"source": str(source), **measured, "types": [asdict(row) for row in rows]}))
        return
    _print(rows, bandwidth)


def _rows(source: Path, bandwidth: ReadBandwidth) -> list[_Row]:
    from offload.reading import weight_bytes_per_token
    from quantizer.size_table import planned_header, size_table

    rows = []
    for item in size_table(source):
        header = planned_header(item.plan)
        n_read = weight_bytes_per_token(header, header.tensors)
        rows.append(
            _Row(
                item.file_type.name,
                round(item.plan.bits_per_weight, 3),
                item.plan.n_bytes,
                item.file_type.perplexity_loss,
                round(bandwidth.bytes_per_s / n_read, 1),
                bool(item.plan.missing_imatrix),
                item.file_type.description,
            )
        )
    return rows


def _print(rows: list[_Row], bandwidth: ReadBandwidth) -> None:
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
