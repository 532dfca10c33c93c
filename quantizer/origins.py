"""In which files of a checkpoint the bytes of a tensor lie, whatever it is made of. Pure.

Owns the way through tensors that are made of others: they are frozen dataclasses all the way down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass

from quantizer.arriving import ArrivingFile
from quantizer.events import Reads
from quantizer.packed.rows import RowFile

__all__ = ["files_of", "reads_of"]


def files_of(tensor: object) -> Iterator[ArrivingFile]:
    """Yield the files that still arrive, or did, that reading `tensor` reads."""
    if isinstance(tensor, ArrivingFile):
        yield tensor
    elif isinstance(tensor, RowFile):
        yield from files_of(tensor.parts)
    elif isinstance(tensor, tuple):
        for part in tensor:
            yield from files_of(part)
    elif is_dataclass(tensor):
        for field in fields(tensor):
            yield from files_of(getattr(tensor, field.name))


def reads_of(tensors: Sequence[object], n_done: int) -> Reads:
    """Which files the `tensors` from number `n_done` on need, by first use, each with the first and last of them."""
    spans: dict[str, tuple[int, int]] = {}
    for index in range(n_done, len(tensors)):
        for file in files_of(tensors[index]):
            first, _ = spans.get(file.path.name, (index, index))
            spans[file.path.name] = (first, index)
    return Reads(tuple((name, *span) for name, span in spans.items()))
