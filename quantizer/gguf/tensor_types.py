"""The ggml tensor types (how many bytes hold a block of how many elements), and the file types that users choose from.

Which tensors depart from a file type is decided in `quantizer.mix.type_rules`. Source: ggml/include/ggml.h,
ggml/src/ggml.c, ggml-common.h, include/llama.h and tools/quantize/quantize.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quantizer.system.errors import UsageError


@dataclass(frozen=True, slots=True)
class TensorType:
    """One storage type: `block_bytes` bytes hold `block_size` consecutive elements of a row."""

    type_id: int
    name: str
    block_size: int
    block_bytes: int
    is_quantized: bool

    @property
    def bits_per_weight(self) -> float:  # scales included
        return 8 * self.block_bytes / self.block_size

    def fits(self, n_columns: int) -> bool:
        return n_columns % self.block_size == 0

    def row_bytes(self, n_columns: int) -> int:
        assert self.fits(n_columns)
        return n_columns // self.block_size * self.block_bytes

    def tensor_bytes(self, shape: Sequence[int]) -> int:
        """Return bytes of a tensor of `shape` in ggml order (row length first); `()` is one element."""
        return self.row_bytes(shape[0]) * math.prod(shape[1:]) if shape else self.block_bytes


# number, name, elements of a block (1: a plain type), bytes of a block
_ROWS = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (31, "Q4_0_4_4", 32, 18),
    (32, "Q4_0_4_8", 32, 18),
    (33, "Q4_0_8_8", 32, 18),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
)

_ALL = tuple(TensorType(number, name, size, n_bytes, size > 1) for number, name, size, n_bytes in _ROWS)
TENSOR_TYPES: dict[int, TensorType] = {entry.type_id: entry for entry in _ALL}
# Q4_0 as files of 2024 have it, which llama.cpp no longer reads -> rows that are interleaved, bytes of each in turn
INTERLEAVED_ROWS = {"Q4_0_4_4": (4, 4), "Q4_0_4_8": (4, 8), "Q4_0_8_8": (8, 8)}
_BY_NAME = {entry.name: entry for entry in _ALL}
_NO_WEIGHTS = {"I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"}  # for indices, or for activations only
WEIGHT_TYPES = {
    name: entry for name, entry in _BY_NAME.items() if name not in _NO_WEIGHTS and name not in INTERLEAVED_ROWS
}


def tensor_type_named(name: str) -> TensorType:
    """Return the type with this upper-case name. Raises KeyError when there is none."""
    return _BY_NAME[name]


_LOSSLESS = ("F32", "F16", "BF16")  # what models are trained and published in


@dataclass(frozen=True, slots=True)
class FileType:
    """One choice of `localllm quantize`; `ftype_id` is the value of `general.file_type`. `perplexity_loss` is what
    llama.cpp measured that the type adds to the perplexity of Llama-3-8B (6.23), None where it has no figure. Source:
    QUANT_OPTIONS in tools/quantize/quantize.cpp."""

    name: str
    ftype_id: int
    base_name: str
    description: str
    perplexity_loss: float | None = None

    @property
    def base(self) -> TensorType:
        return tensor_type_named(self.base_name)


FILE_TYPES: dict[str, FileType] = {
    entry.name: entry
    for entry in (
        FileType("F32", 0, "F32", "full precision, for reference"),
        FileType("BF16", 32, "BF16", "half size; keeps the range of bfloat16 checkpoints"),
        FileType("F16", 1, "F16", "half size, practically lossless"),
        FileType("Q8_0", 7, "Q8_0", "almost lossless; the safe choice where it fits", 0.0026),
        FileType("Q6_K", 18, "Q6_K", "very little loss", 0.0217),
        FileType("Q5_K_M", 17, "Q5_K", "little loss, the sensitive tensors in Q6_K", 0.0569),
        FileType("Q5_K_S", 16, "Q5_K", "little loss", 0.1049),
        FileType("Q5_1", 9, "Q5_1", "older; Q5_K_M is better", 0.1062),
        FileType("Q5_0", 8, "Q5_0", "older; Q5_K_S is better", 0.1316),
        FileType("Q4_K_M", 15, "Q4_K", "the usual balance of size and quality", 0.1754),
        FileType("Q4_K_S", 14, "Q4_K", "a little smaller than Q4_K_M", 0.2689),
        FileType("Q4_1", 3, "Q4_1", "older; Q4_K_M is better", 0.4511),
        FileType("Q4_0", 2, "Q4_0", "older; fast where the CPU repacks it", 0.4685),
        FileType("IQ4_NL", 25, "IQ4_NL", "4 bits on a curve, in blocks of 32"),
        FileType("IQ4_XS", 30, "IQ4_XS", "smaller than Q4_K_S at nearly its quality"),
        FileType("Q3_K_L", 13, "Q3_K", "visible loss; the sensitive tensors in Q5_K", 0.5562),
        FileType("Q3_K_M", 12, "Q3_K", "visible loss", 0.6569),
        FileType("Q3_K_S", 11, "Q3_K", "strong loss", 1.6321),
        FileType("IQ3_M", 27, "IQ3_S", "visible loss, a mix"),
        FileType("IQ3_S", 26, "IQ3_S", "visible loss"),
        FileType("IQ3_XS", 22, "IQ3_S", "strong loss"),
        FileType("IQ3_XXS", 23, "IQ3_XXS", "strong loss"),
        FileType("Q2_K", 10, "Q2_K", "heavy loss", 3.5199),
        FileType("Q2_K_S", 21, "Q2_K", "heavy loss", 3.1836),
        FileType("IQ2_M", 29, "IQ2_S", "heavy loss"),
        FileType("IQ2_S", 28, "IQ2_XS", "heavy loss"),
        FileType("IQ2_XS", 20, "IQ2_XS", "heavy loss"),
        FileType("IQ2_XXS", 19, "IQ2_XXS", "heavy loss"),
        FileType("IQ1_M", 31, "IQ1_M", "for experiments"),
        FileType("IQ1_S", 24, "IQ1_S", "for experiments"),
        FileType("MXFP4_MOE", 38, "MXFP4", "experts in MXFP4, all else in Q8_0"),
        FileType("TQ2_0", 37, "TQ2_0", "for models trained with ternary weights"),
        FileType("TQ1_0", 36, "TQ1_0", "for models trained with ternary weights"),
        FileType("Q2_0", 41, "Q2_0", "for models trained with two-bit weights"),
        FileType("Q1_0", 40, "Q1_0", "for models trained with binary weights"),
    )
}

DEFAULT_FILE_TYPE = "Q4_K_M"
DRAFT_COPY_TYPE = "Q2_K"  # of a copy that drafts for its model: the smallest that needs no importance matrix
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_BY_ID = {entry.ftype_id: entry.name for entry in FILE_TYPES.values()}


def file_type_named(name: str) -> FileType:
    """Return the file type called `name`, or llama.cpp's short name, in any case. Raises UsageError listing all."""
    upper = name.upper()
    entry = FILE_TYPES.get(_ALIASES.get(upper, upper))
    if entry is None:
        raise UsageError(f"There is no quantization type {name!r}.", f"Choose one of {', '.join(FILE_TYPES)}.")
    return entry


def is_lossy(file_type: str) -> bool:
    """Return whether a model of the file type called `file_type` has lost something of the original; not of "",
    unknown."""
    return file_type.upper() not in ("", *_LOSSLESS)


def file_type_name(ftype_id: int | None) -> str:
    """Return the name of a `general.file_type`, "" for a number that is not in the table."""
    return _BY_ID.get(ftype_id, "") if ftype_id is not None else ""
