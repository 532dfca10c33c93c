"""What a search for a mix chose, and why: as a table for people, as an object for programs."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from app.terminal import printable
from quantizer.tensor_types import tensor_type_named

if TYPE_CHECKING:
    from app.cli.mix_search import Found

__all__ = ["mix_json", "print_mix"]

_MILLION = 1e6
_WIDTH_COLUMNS = 140  # where the output is no terminal


@dataclass(frozen=True, slots=True)
class _Row:
    """The tensors of one kind: how many have which type, and what they are expected to add to the divergence.

    `kld_per_million` is what was measured with each alone in four bits, for a million of its weights: the larger, the
    more bits they deserve.
    """

    tensors: str
    types: dict[str, int]
    bytes: int
    bits_per_weight: float
    kld: float
    kld_per_million: float


def mix_json(found: Found) -> dict[str, object]:
    """Return what was found as JSON has it: the type of every tensor, and the rows of the table."""
    plain = found.search.nearest_plain(found.mix)
    return {
        "expected_kld": found.mix.kld,
        "measured_kld": found.kld,
        "groups": [asdict(row) for row in _rows(found)],
        "nearest_plain": plain and {"type": plain.file_type.name, "bytes": plain.n_bytes, "expected_kld": plain.kld},
        "tensors": dict(found.mix.types),
    }


def print_mix(found: Found) -> None:
    """Print the table, and beside what the mix has to be seen."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("tensors")
    table.add_column("types")
    for heading in ("bytes", "bits/weight", "expected KLD", "per M weights"):
        table.add_column(heading, justify="right")
    for row in _rows(found):
        types = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in row.types.items())
        figures = (f"{row.bytes:,}", f"{row.bits_per_weight:.2f}", f"{row.kld:.2g}", f"{row.kld_per_million:.2g}")
        table.add_row(printable(row.tensors), types, *figures)
    console = Console()
    console.print(table, width=console.width if console.is_terminal else _WIDTH_COLUMNS)
    for sentence in _sentences(found):
        click.echo(sentence)


def _sentences(found: Found) -> Iterator[str]:
    yield "Last column: the divergence measured with each tensor alone in four bits, for a million weights."
    measured = "" if found.kld is None else f"; on another text it does by {found.kld:.3g}"
    yield f"The mix should diverge from the original by {found.mix.kld:.3g} nats a token{measured}."
    plain = found.search.nearest_plain(found.mix)
    if plain is not None:
        yield f"{plain.file_type.name}, of {plain.n_bytes:,} bytes, should diverge by {plain.kld:.3g}."


def _rows(found: Found) -> list[_Row]:
    """Return a row for each kind of tensor, those that deserve most bits first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in found.search.free:
        groups[re.sub(r"^blk\.\d+\.", "blk.*.", name).removesuffix(".weight")].append(name)
    rows = [_row(group, names, found) for group, names in groups.items()]
    return sorted(rows, key=lambda row: row.kld_per_million, reverse=True)


def _row(group: str, names: Sequence[str], found: Found) -> _Row:
    kinds, search = found.mix.types, found.search
    n_weights = sum(math.prod(search.free[name]) for name in names)
    n_bytes = sum(tensor_type_named(kinds[name]).tensor_bytes(search.free[name]) for name in names)
    return _Row(
        group,
        dict(Counter(kinds[name] for name in names).most_common()),
        n_bytes,
        round(8 * n_bytes / n_weights, 3),
        sum(search.sensitivities[name].loss(kinds[name]) for name in names),
        sum(search.sensitivities[name].kld for name in names) * _MILLION / n_weights,
    )
