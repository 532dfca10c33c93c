"""The file types of llama.cpp: the names that users choose from, and the tensor type that most tensors get.

Which tensors depart from the type is decided in `quantizer.mix.type_rules`. Source: llama.cpp include/llama.h and
tools/quantize/quantize.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantizer.gguf.tensor_types import TensorType, tensor_type_named
from quantizer.system.errors import UsageError


@dataclass(frozen=True, slots=True)
class FileType:
    """One choice of `localllm quantize`; `ftype_id` is the value of `general.file_type`.

    `perplexity_loss` is what llama.cpp measured that the type adds to the perplexity of Llama-3-8B (6.23), None
    where it has no figure. Source: QUANT_OPTIONS in tools/quantize/quantize.cpp.
    """

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
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_BY_ID = {entry.ftype_id: entry.name for entry in FILE_TYPES.values()}


def file_type_named(name: str) -> FileType:
    """Return the file type called `name`, or llama.cpp's short name, in any case. Raises UsageError listing all."""
    upper = name.upper()
    entry = FILE_TYPES.get(_ALIASES.get(upper, upper))
    if entry is None:
        raise UsageError(f"There is no quantization type {name!r}.", f"Choose one of {', '.join(FILE_TYPES)}.")
    return entry


def file_type_name(ftype_id: int | None) -> str:
    """Return the name of a `general.file_type`, "" for a number that is not in the table."""
    return _BY_ID.get(ftype_id, "") if ftype_id is not None else ""
