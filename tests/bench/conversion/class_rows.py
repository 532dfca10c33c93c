"""The rows of the table of classes: what a measurement becomes, how rows are printed, and whether all are sound.

Owns the judgement; `class_table.py` measures.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from tests.bench.conversion.compare_files import Difference
from tests.bench.conversion.explained_differences import reason_for, reason_for_refusal

__all__ = [
    "BLOCKS",
    "Cell",
    "Compared",
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
    "worst_table",
]

PLAN_LIMIT = 0.03
# of what a projector gives, by the type that it is written in
_PROJECTION_LIMITS = {"F32": 1e-3, "F16": 2e-3, "Q8_0": 0.05}
# what a file of a type is made of, beside what is never quantized; Q8_0 is the attention of models with eight experts
BLOCKS = {"Q8_0": {"Q8_0"}, "Q4_K_M": {"Q4_K", "Q5_K", "Q6_K", "Q8_0"}}
_KEPT = {"F32", "F16", "BF16", "MXFP4"}
_MAX_ERROR = 200


@dataclass(frozen=True, slots=True)
class Compared:
    """How far llama.cpp's outputs are from the original's in F64, as a share of their range.

    `plain` is so as both are, `difference` once the original does what llama.cpp's graph is known to do, for the
    `reasons`. `noise` is how far the original in F32 is from itself in F64: nobody who computes in F32 is nearer.
    """

    LIMIT: ClassVar[float] = 5e-7
    N_NOISES: ClassVar[int] = 3

    difference: float
    noise: float
    plain: float
    reasons: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        return self.difference <= max(self.LIMIT, self.N_NOISES * self.noise)

    def summary(self) -> dict[str, Any]:
        return asdict(self) | {"is_equal": self.is_equal}


@dataclass(frozen=True, slots=True)
class Cell:
    """What is written in the table, whether it is right, and the reasons of explained differences."""

    text: str
    is_ok: bool = True
    reasons: tuple[str, ...] = ()
    compared: Compared | None = None


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


def difference_cell(compared: Compared, approximations: Sequence[str] = (), warnings: Sequence[str] = ()) -> Cell:
    """How far the outputs are from the original's.

    Too far only where llama.cpp computes by approximations, and every one was a warning of the conversion.
    """
    text = f"{compared.difference:.1e}"
    if compared.reasons:
        text += f" (explained: {compared.plain:.1e})"
    if compared.is_equal:
        of_f32 = f", F32 itself {compared.noise:.1e}" if compared.difference > compared.LIMIT else ""
        return Cell(text + of_f32, True, compared.reasons, compared)
    is_told = bool(approximations) and set(approximations) <= set(warnings) and math.isfinite(compared.difference)
    return Cell(f"{text}{' as warned' if is_told else ''}", is_told, (*compared.reasons, *approximations), compared)


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


def worst_table(rows: Sequence[Row]) -> str:
    """The largest difference of each of llama.cpp's architectures, as a table of Markdown."""
    found: dict[str, list[Compared]] = {}
    for row in rows:
        if (cell := row.cells.get("difference")) and cell.compared:
            found.setdefault(row.architecture, []).append(cell.compared)
    lines = ["| architecture | checkpoints | largest | F32 itself | without what is explained |", "|---" * 5 + "|"]
    for architecture, compared in sorted(found.items()):
        worst = max(compared, key=lambda each: each.difference)
        figures = (worst.difference, max(each.noise for each in compared), max(each.plain for each in compared))
        lines.append(f"| {architecture} | {len(compared)} | {' | '.join(f'{each:.1e}' for each in figures)} |")
    return "\n".join(lines)
