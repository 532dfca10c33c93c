"""The rows of the table of classes: what a measurement becomes, how rows are printed, and whether all are sound.

Owns the judgement; `class_table.py` measures.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.bench.conversion.compare_files import Difference
from tests.bench.conversion.explained_differences import reason_for, reason_for_refusal

__all__ = [
    "BLOCKS",
    "Cell",
    "Row",
    "attempted",
    "difference_cell",
    "exit_code",
    "peer_cell",
    "plan_cell",
    "projector_cell",
    "refusal_cell",
    "table",
    "types_cell",
]

LIMIT = 2e-3
PLAN_LIMIT = 0.03
# of what a projector gives, by the type that it is written in
_PROJECTION_LIMITS = {"F32": 1e-3, "F16": 2e-3, "Q8_0": 0.05}
# what a file of a type is made of, beside what is never quantized; Q8_0 is the attention of models with eight experts
BLOCKS = {"Q8_0": {"Q8_0"}, "Q4_K_M": {"Q4_K", "Q5_K", "Q6_K", "Q8_0"}}
_KEPT = {"F32", "F16", "BF16", "MXFP4"}
_MAX_ERROR = 200


@dataclass(frozen=True, slots=True)
class Cell:
    """What is written in the table, whether it is right, and the reasons of explained differences."""

    text: str
    is_ok: bool = True
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One checkpoint: its class of transformers, llama.cpp's architecture, and a cell for each column."""

    name: str
    hf_class: str
    architecture: str
    cells: dict[str, Cell]

    @property
    def is_ok(self) -> bool:
        return all(cell.is_ok for cell in self.cells.values())


def difference_cell(difference: float, approximations: Sequence[str] = (), warnings: Sequence[str] = ()) -> Cell:
    """The largest difference of outputs, as a share of their range.

    Above the limit only where llama.cpp computes by approximations, and every one was a warning of the conversion.
    """
    if difference <= LIMIT:
        return Cell(f"{difference:.1e}")
    is_told = bool(approximations) and set(approximations) <= set(warnings) and math.isfinite(difference)
    return Cell(f"{difference:.1e}{' as warned' if is_told else ''}", is_told, tuple(approximations))


def peer_cell(architecture: str, change: str, differences: Sequence[Difference]) -> Cell:
    """Whether a file is what the peer writes, which needed `change`; else how many keys are explained, or are not."""
    reasons = {difference: reason_for(architecture, difference) for difference in differences}
    unexplained = [difference for difference, reason in reasons.items() if reason is None]
    told = tuple(dict.fromkeys(f"{key.key}: {reason}" for key, reason in reasons.items() if reason is not None))
    if unexplained:
        return Cell("; ".join(f"{difference.key}: {difference.text}" for difference in unexplained), False, told)
    parts = [f"{len(differences)} explained"] * bool(differences) + [change] * bool(change)
    return Cell(f"ok: {', '.join(parts)}" if parts else "ok", True, told)


def refusal_cell(architecture: str, error: str) -> Cell:
    """A checkpoint of an architecture of llama.cpp that the peer refuses with `error`."""
    reason = reason_for_refusal(architecture, error)
    return Cell("ok: refused by theirs", True, (reason,)) if reason else Cell(f"theirs: {error}", False)


def types_cell(type_name: str, found: Iterable[str], warnings: Iterable[str]) -> Cell:
    """Whether the tensors of a file have the types of `type_name`, or those that a warning said they get instead."""
    said = {name for text in warnings for name in re.findall(r"use (\w+):", text)}
    others = set(found) - BLOCKS[type_name] - _KEPT
    silent = sorted(others - said)
    if silent:
        return Cell(f"became {', '.join(silent)} without a word", False)
    return Cell(f"ok: {', '.join(sorted(others))} instead" if others else "ok")


def plan_cell(planned: Mapping[str, float], real: Mapping[str, float]) -> Cell:
    """The largest share by which planned bytes are off the real ones."""
    off = {key: abs(planned[key] - real[key]) / (real[key] or 1) for key in real}
    worst = max(off, key=lambda key: off[key])
    if off[worst] > PLAN_LIMIT:
        return Cell(f"{worst}: {planned[worst]:,.0f} for {real[worst]:,.0f}", False)
    return Cell(f"ok: {off[worst]:.1%} off" if off[worst] else "ok")


def projector_cell(differences: Mapping[str, float], peer: Cell) -> Cell:
    """How far each type of a projector is off, and whether the peer writes the same file."""
    is_ok = all(difference <= _PROJECTION_LIMITS[name] for name, difference in differences.items())
    text = ", ".join(f"{name} {difference:.1e}" for name, difference in differences.items())
    return Cell(f"{text}; {peer.text}", is_ok and peer.is_ok, peer.reasons)


def attempted(make: Callable[[], Cell]) -> Cell:
    """The cell, or the error that ended it: a row never ends the table."""
    try:
        return make()
    except (Exception, SystemExit) as error:
        return Cell(f"{type(error).__name__}: {error}"[:_MAX_ERROR], False)


def exit_code(rows: Iterable[Row]) -> int:
    """Return 1 where a row is wrong."""
    return int(not all(row.is_ok for row in rows))


def table(rows: Sequence[Row]) -> str:
    """The rows as a table of Markdown, then every reason with how many rows it explains."""
    columns = list(dict.fromkeys(column for row in rows for column in row.cells))
    lines = ["| checkpoint | class | architecture | " + " | ".join(columns) + " |", "|---" * (3 + len(columns)) + "|"]
    for row in rows:
        cells = (row.cells[column].text.replace("|", "\\|") if column in row.cells else "" for column in columns)
        lines.append(f"| {row.name} | {row.hf_class} | {row.architecture} | {' | '.join(cells)} |")
    counts = Counter(reason for row in rows for cell in row.cells.values() for reason in cell.reasons)
    return "\n".join([*lines, "", *(f"{n:4} × {reason}" for reason, n in sorted(counts.items()))])
