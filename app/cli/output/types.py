"""The table of `localllm tune --types`: how fast each type of weights is multiplied, by path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import click
from rich.table import Table

from app.cli.output.format import print_json, print_table
from offload.speed.type_costs import UNCACHED_BYTES, TypeCost, TypeTable, TypeWork, is_repacked, type_of
from quantizer.gguf.tensor_types import tensor_type_named

_ROW = 2048  # weights of a row, as in models of a billion
_BILLION = TypeWork(1e9, 1e9 / _ROW)


@dataclass(frozen=True, slots=True)
class TypeSpeedRow:
    """One type on one path: tokens a second that a model of a billion such weights reads, 512 and 64 at once, and that
    it writes; and the bytes of weights that it reads a second meanwhile."""

    device: str
    type: str
    path: str
    bits_per_weight: float
    reads_512_tps: float
    reads_64_tps: float
    writes_tps: float
    bytes_per_s: float


def type_speed_rows(tables: Mapping[str, TypeTable]) -> Iterator[TypeSpeedRow]:
    """Yield the rows, of each device the fastest reader first."""
    for device, table in tables.items():
        for kind, cost in sorted(table.types.items(), key=lambda item: item[1].many.of(_BILLION)):
            yield _row(device, kind, cost)


def _row(device: str, kind: str, cost: TypeCost) -> TypeSpeedRow:
    bits = tensor_type_named(type_of(kind)).bits_per_weight
    answer_s = cost.answer(UNCACHED_BYTES).of(_BILLION)
    return TypeSpeedRow(
        device=device,
        type=type_of(kind),
        path="repacked" if is_repacked(kind) else "as in the file",
        bits_per_weight=bits,
        reads_512_tps=round(1 / cost.many.of(_BILLION), 2),
        reads_64_tps=round(1 / cost.few.of(_BILLION), 2),
        writes_tps=round(1 / answer_s, 2),
        bytes_per_s=round(_BILLION.n_weights * bits / 8 / answer_s),
    )


def print_type_tables(tables: Mapping[str, TypeTable], n_threads: int, *, wants_json: bool) -> None:
    rows = list(type_speed_rows(tables))
    if wants_json:
        print_json({"threads": n_threads, "types": rows})
        return
    table = Table(box=None)
    headings = ("bits", "reads", "of 64", "writes", "GB/s")
    for heading in (*(("device",) if len(tables) > 1 else ()), "type", "weights"):
        table.add_column(heading)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            *((row.device,) if len(tables) > 1 else ()),
            row.type,
            row.path,
            f"{row.bits_per_weight:.2f}",
            f"{row.reads_512_tps:.1f}",
            f"{row.reads_64_tps:.1f}",
            f"{row.writes_tps:.1f}",
            f"{row.bytes_per_s / 1e9:.1f}",
        )
    print_table(table)
    click.echo(
        f"Tokens per second of a model with a billion weights of one type, with {n_threads} threads: reads, a prompt\n"
        "512 tokens at once, or 64; writes, an answer. GB/s: bytes of weights read meanwhile."
    )
