"""What differs between two GGUF files of one model: tensors (names, shapes, types, values) and metadata.

Owns the comparison only. Which differences are explained, and by what, `explained_differences.py` knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantizer.gguf.gguf_reader import ArrayRef
from quantizer.gguf.header import Header, TensorInfo, read_header
from quantizer.gguf.tensor_types import TENSOR_TYPES

__all__ = ["Difference", "Values", "compare_files", "compare_keys", "compare_tensors"]

# the whole numbers as which the bits of floats are compared, by ggml's name of their type
_BITS = {"F32": np.int32, "F16": np.int16, "BF16": np.int16, "F64": np.int64}
_MAX_TEXT = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor or a metadata key, without its architecture or the number of its layer, and what differs in it."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Values:
    """A tensor: ggml's name of its type, its shape in ggml order, its bytes."""

    type_name: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def kind(self) -> str:
        return f"{self.type_name} {'×'.join(map(str, self.shape))}"

    def steps_to(self, other: Values) -> np.ndarray:
        """How many representable numbers lie between the values of tensors of a kind; of blocks, 2 where unequal."""
        if self.type_name not in _BITS:
            mine, theirs = (np.frombuffer(values.data, np.uint8) for values in (self, other))
            return 2 * (mine != theirs)
        bits = _BITS[self.type_name]
        mine, theirs = (_in_order(np.frombuffer(values.data, bits)) for values in (self, other))
        return np.abs(mine - theirs)


def compare_files(ours: Path, theirs: Path) -> list[Difference]:
    """Return the differences of two files, those of tensors first, one for each kind of tensor."""
    mine, other = read_header(ours), read_header(theirs)
    named = re.compile(r"^([av]\.)?blk\.\d+\.")
    found = [*compare_tensors(_tensors(mine), _tensors(other)), *compare_keys(_keys(mine), _keys(other))]
    short = (Difference(named.sub(r"\1", difference.key), difference.text) for difference in found)
    return list(dict.fromkeys(short))


def compare_tensors(ours: Mapping[str, Values], theirs: Mapping[str, Values]) -> Iterator[Difference]:
    """Yield tensors that one of two models lacks, or that differ in shape, type, or by more than the last bit."""
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            yield Difference(name, "only in ours" if name in ours else "only in theirs")
            continue
        mine, other = ours[name], theirs[name]
        if mine.kind != other.kind:
            yield Difference(name, f"{mine.kind} for {other.kind}")
        elif (n_steps := mine.steps_to(other).max(initial=0)) > 1:
            yield Difference(name, f"values up to {n_steps} steps apart")


def compare_keys(ours: Mapping[str, object], theirs: Mapping[str, object]) -> Iterator[Difference]:
    """Yield the metadata keys that say something else, or are in one of two files only."""
    for key in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(key), theirs.get(key)
        if mine != other:
            yield Difference(key, f"{_shown(mine)} for {_shown(other)}")


def _in_order(bits: np.ndarray) -> np.ndarray:
    """Return whole numbers in the order of the floats whose bits these are; both zeros are 0."""
    wide = bits.astype(np.int64)
    return np.where(wide < 0, np.iinfo(bits.dtype).min - wide, wide)


def _tensors(header: Header) -> dict[str, Values]:
    return {tensor.name: _values(header, tensor) for tensor in header.tensors}


def _values(header: Header, tensor: TensorInfo) -> Values:
    return Values(TENSOR_TYPES[tensor.type_id].name, tensor.shape, header.tensor_bytes(tensor))


def _keys(header: Header) -> dict[str, object]:
    return {
        key.removeprefix(f"{header.architecture}."): header.array(key) if isinstance(value, ArrayRef) else value
        for key, value in header.metadata.items()
    }


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:_MAX_TEXT]
