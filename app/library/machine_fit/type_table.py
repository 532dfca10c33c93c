"""The table of types that a local model could be quantized to: sizes from plans, speeds from memory bandwidth.

Owns the rows. Writes no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.library.local.model_files import ModelRef
from app.library.local.resolve import GUIDE
from app.protocol.library import ModelFit, Quant, TypeChoice
from offload.footprint.model import PlannedModel
from offload.footprint.weights import weight_bytes_per_token
from quantizer.write.quantize_plan import header_of_plan, size_table


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One type for a model; `max_tokens_per_s` is the limit that reading its weights from memory sets here.

    `perplexity_loss` is what the type adds to the 6.23 of Llama-3-8B as llama.cpp measured, None if unknown.
    """

    type: str
    bits_per_weight: float
    bytes: int
    perplexity_loss: float | None
    max_tokens_per_s: float
    needs_imatrix: bool
    description: str


def type_rows(source: Path, bytes_per_s: float, base: Path | None = None) -> Iterator[TypeRow]:
    """Yield a row for each type for the model at `source`, with a memory bandwidth of `bytes_per_s`.

    `base` is the model that a draft head is for. Raises UserError as planning does.
    """
    for row, _ in _rows(source, bytes_per_s, base):
        yield row


def type_choices(source: Path, bytes_per_s: float, fit: Callable[[PlannedModel], ModelFit]) -> list[TypeChoice]:
    """Return the rows, each with its fit as `fit` computes it. Raises as `type_rows` does."""
    return [
        TypeChoice(
            quant=Quant(row.type, row.bytes, fit(model)),
            bits_per_weight=row.bits_per_weight,
            perplexity_loss=row.perplexity_loss,
            max_tokens_per_s=row.max_tokens_per_s,
            needs_imatrix=row.needs_imatrix,
            description=row.description,
        )
        for row, model in _rows(source, bytes_per_s)
    ]


def quantize_source(ref: ModelRef) -> Path:
    """Return the source that `localllm quantize` reads for `ref`: the guide's checkpoint, else the file."""
    return ref.path.parent if ref.id == GUIDE else ref.path


def _rows(source: Path, bytes_per_s: float, base: Path | None = None) -> Iterator[tuple[TypeRow, PlannedModel]]:
    for plan in size_table(source, base):
        header = header_of_plan(plan)
        row = TypeRow(
            plan.file_type.name,
            round(plan.bits_per_weight, 3),
            plan.n_bytes,
            plan.file_type.perplexity_loss,
            round(bytes_per_s / weight_bytes_per_token(header, header.tensors), 1),
            bool(plan.missing_imatrix),
            plan.file_type.description,
        )
        yield row, PlannedModel(header, header.tensors)
