"""What each file type would make of a model: its exact size, from the plan, and what a token reads of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quantizer.file_types import FILE_TYPES, FileType
from quantizer.header import Header
from quantizer.plan import QuantizePlan, open_source, plan_model
from quantizer.unwritten import unwritten_header

__all__ = ["SizeRow", "planned_header", "size_table"]


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One file type and the plan for it."""

    file_type: FileType
    plan: QuantizePlan


def size_table(source: Path) -> Iterator[SizeRow]:
    """Plan `source` once for every file type; headers are read once. Raises UserError as `plan` does."""
    model = open_source(source)
    for file_type in FILE_TYPES.values():
        yield SizeRow(file_type, plan_model(model, file_type, Path(f"{file_type.name}.gguf")))


def planned_header(plan: QuantizePlan) -> Header:
    """The header of the file that a plan in one file would write, as if it were read from there."""
    (shard,) = plan.shards
    return unwritten_header(shard.header, plan.n_bytes, shard.path)
