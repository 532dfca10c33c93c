"""GPTQ and AWQ: whole numbers packed into words, with a zero point and a scale for each group of inputs.

weight[o, i] = (q[i, o] - zero[group of i, o]) * scale[group of i, o]. GPTQ packs two to eight bits down the columns,
its groups in any order; the first version of the format stores zero points less one. Where settings name layers that
differ from the rest, the shapes of each layer tell its bits and groups. AWQ's GEMM layout packs four bits, eight
outputs to a word, in the order that its kernel likes. Source: AutoGPTQ's, GPTQModel's and AutoRound's linear layers,
AutoAWQ's WQLinear_GEMM.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.packed.parts import (
    FLOATS,
    WORD_BITS,
    Grid,
    Parts,
    Rows,
    apply_scales,
    array,
    column_groups,
    computed_weight,
    dims,
    malformed,
    unpack_bits,
    unsupported,
)
from quantizer.convert.source_model import FileTensor

_GPTQ_BITS = (2, 3, 4, 5, 6, 7, 8)
# checkpoint_format -> what is added to a stored zero point, which wraps round
_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
_AWQ_BITS = 4
_PER_WORD = WORD_BITS // _AWQ_BITS
# the field of a word in which each of eight neighbours lies
_FIELDS = np.array([0, 4, 1, 5, 2, 6, 3, 7])


def _gptq_rows(
    stored_words: FileTensor,
    stored_zeros: FileTensor,
    stored_scales: FileTensor,
    groups: FileTensor | None,
    group_size: int,
    n_bits: int,
    zero_offset: int,
) -> Rows:
    """Read all, packed: a row of the weight lies across all words. Without `groups` inputs are in order."""
    words, scales = array(stored_words), array(stored_scales)
    zeros = unpack_bits(array(stored_zeros), n_bits) + np.uint8(zero_offset) & np.uint8(2**n_bits - 1)
    in_order = np.arange(len(words) * WORD_BITS // n_bits) // group_size
    columns = in_order if groups is None else column_groups(groups, len(scales))
    return _scaled(lambda start, stop: unpack_bits(words[:, start:stop].T, n_bits), scales, zeros, columns)


def _awq_rows(stored_words: FileTensor, zeros: FileTensor, scales: FileTensor, group_size: int) -> Rows:
    """Read all, packed, as `_gptq_rows` does."""
    words = array(stored_words)

    def codes(start: int, stop: int) -> npt.NDArray[np.uint8]:
        first = start // _PER_WORD
        fields = _ordered(words[:, first : -(-stop // _PER_WORD)])
        return fields[:, start - first * _PER_WORD : stop - first * _PER_WORD].T

    columns = np.arange(len(words)) // group_size
    return _scaled(codes, array(scales), _ordered(array(zeros)), columns)


def _scaled(
    codes: Rows, scales: npt.NDArray[np.generic], zeros: npt.NDArray[np.generic], columns: npt.NDArray[np.intp]
) -> Rows:
    """Return (code - zero) * scale; both have a row for each group and a column for each row of the weight."""
    rows = np.arange(scales.shape[1])
    grids = (Grid(values.T.astype(np.float32), rows, columns) for values in (scales, zeros))
    return apply_scales(codes, *grids)


def _ordered(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Return the fields of each row of AWQ's words, neighbours side by side."""
    fields = unpack_bits(words, _AWQ_BITS).reshape(len(words), -1, _PER_WORD)
    return fields[..., _FIELDS].reshape(len(words), -1)


def unpack_gptq(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight of qweight, qzeros, scales and g_idx. Raises CheckpointError for a setting or a part."""
    version = config.text("checkpoint_format") or "gptq"
    if version not in _ZERO_OFFSETS:
        raise unsupported(f"GPTQ format {version[:64]!r}")
    for name in parts.bases(".qweight"):
        yield _gptq_weight(name, _layer_settings(name, config, parts), _ZERO_OFFSETS[version], parts)


def _layer_settings(name: str, config: Config, parts: Parts) -> Config:
    """Return the settings of a layer, by its shapes where some layers differ; the parts are checked when taken."""
    part_names = [f"{name}.{part}" for part in ("qweight", "qzeros", "scales")]
    if not _differs(config) or any(part not in parts.left for part in part_names):
        return config
    words, zeros, scales = (parts.left[part] for part in part_names)
    n_bits = zeros.shape[0] * WORD_BITS // scales.shape[0]
    n_columns = math.prod(words.shape[1:]) * WORD_BITS // max(1, n_bits)
    size, n_groups = config.values.get("group_size"), math.prod(scales.shape[1:])
    if not isinstance(size, int) or size < 1 or -(-n_columns // size) != n_groups:
        size = -(-n_columns // n_groups)
    return Config({**config.values, "bits": n_bits, "group_size": size})


def _differs(config: Config) -> bool:
    """Return whether some layers have settings of their own: AutoRound's extra_config, GPTQModel's dynamic."""
    return bool(config.section("extra_config").values or config.section("dynamic").values)


def _gptq_weight(name: str, config: Config, zero_offset: int, parts: Parts) -> FileTensor:
    n_bits = config.integer("bits")
    if n_bits not in _GPTQ_BITS:
        raise unsupported(f"GPTQ of {n_bits} bits")
    words, n_words, n_rows = parts.matrix(f"{name}.qweight", ("I32",))
    n_columns, rest = divmod(n_words * WORD_BITS, n_bits)
    scales, n_groups, _ = parts.matrix(f"{name}.scales", FLOATS)
    size = config.values.get("group_size")
    group_size = n_columns if size in (None, -1) else config.integer("group_size")
    is_sound = not rest and dims(scales)[1] == n_rows and group_size > 0 and n_rows * n_bits % WORD_BITS == 0
    if not is_sound or -(-n_columns // group_size) != n_groups:
        raise malformed(f"The tensor {scales.name!r} does not have one number for each group of {n_rows} rows")
    zeros = parts.take(f"{name}.qzeros", ("I32",), (n_groups, n_rows * n_bits // WORD_BITS))
    groups = parts.optional(f"{name}.g_idx", ("I32",), (n_columns,))
    packed = (words, zeros, scales, groups, group_size, n_bits, zero_offset)
    return computed_weight(f"{name}.weight", (n_rows, n_columns), _gptq_rows, *packed)


def unpack_awq(config: Config, parts: Parts) -> Iterator[FileTensor]:
    """Yield every weight that is stored as qweight, qzeros and scales. Raises as `unpack_gptq` does."""
    layout, n_bits = (config.text("version") or "gemm").lower(), config.integer("bits", "w_bit")
    if layout != "gemm" or n_bits != _AWQ_BITS:
        raise unsupported(f"AWQ layout {layout[:64]!r} of {n_bits} bits")
    for name in parts.bases(".qweight"):
        words, n_columns, n_words = parts.matrix(f"{name}.qweight", ("I32",))
        n_rows = n_words * _PER_WORD
        is_whole = config.values.get("group_size", config.values.get("q_group_size")) == -1
        group_size = n_columns if is_whole else config.integer("group_size", "q_group_size")
        if _differs(config) and f"{name}.scales" in parts.left:
            group_size = n_columns // math.prod(parts.left[f"{name}.scales"].shape[1:])
        if not group_size or n_columns % group_size:
            raise malformed(
                f"The tensor {words.name!r} has {n_columns} inputs, not a multiple of the group size {group_size}"
            )
        n_groups = n_columns // group_size
        zeros = parts.take(f"{name}.qzeros", ("I32",), (n_groups, n_words))
        scales = parts.take(f"{name}.scales", FLOATS, (n_groups, n_rows))
        yield computed_weight(f"{name}.weight", (n_rows, n_columns), _awq_rows, words, zeros, scales, group_size)
